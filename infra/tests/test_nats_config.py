"""The permission table, and the configuration made of it."""

import json
import unittest

from local.credentials import Credentials
from local.nats_config import PERMISSIONS, nats_config, permission_table
from local.settings import SERVICES


def matches(pattern, subject):
    """Whether a NATS pattern covers a subject."""
    wanted, words = pattern.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(words) > place
        if place >= len(words) or token not in ("*", words[place]):
            return False
    return len(wanted) == len(words)


class PermissionTable(unittest.TestCase):
    def setUp(self):
        self.table = json.loads(PERMISSIONS.read_text())
        self.users = permission_table()

    def who_may_publish(self, subject):
        def covered(rights, verdict):
            return any(matches(pattern, subject) for pattern in rights["publish"].get(verdict, []))

        users = set(self.users) - {"operator"}
        return {user for user in users if covered(self.users[user], "allow") and not covered(self.users[user], "deny")}

    def test_it_speaks_of_declared_users_groups_streams_and_consumers_only(self):
        self.assertEqual(set(self.users), set(SERVICES) | {"publisher", "operator"})
        streams = self.table["streams"]
        for user, own in self.table["users"].items():
            for source in [self.table["groups"][name] for name in own.get("groups", [])] + [own]:
                self.assertLessEqual(set(source.get("mends", [])), set(streams), user)
                for stream, consumers in source.get("consumes", {}).items():
                    self.assertLessEqual(set(consumers), set(streams[stream]), user)
                known = {"groups", "publish", "subscribe", "consumes", "mends", "replies", "sweeps"}
                self.assertLessEqual(set(source), known, user)
        for event, owners in self.table["exclusive"].items():
            self.assertLessEqual(set(owners), set(SERVICES), event)

    def test_each_consumer_has_one_reader(self):
        for stream, consumers in self.table["streams"].items():
            for consumer in consumers:
                self.assertEqual(
                    len(self.who_may_publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}")), 1, consumer
                )

    def test_what_decides_is_said_by_few(self):
        sweepers = {"scheduler", "ingress"}
        self.assertEqual(self.who_may_publish("svc.approval.decide"), {"ingress"})
        self.assertEqual(self.who_may_publish("svc.tool-executor.freeze"), {"ingress"})
        self.assertEqual(self.who_may_publish("svc.tool-executor.preview"), {"approval"})
        self.assertEqual(self.who_may_publish("svc.tool-executor.verify"), {"observer"})
        self.assertEqual(self.who_may_publish("svc.tool-executor.check"), {"observer"})
        self.assertEqual(self.who_may_publish("svc.planner.classify"), {"observer"})
        for verb in ("endorsed", "granted", "denied"):
            self.assertEqual(self.who_may_publish(f"evt.approval.{verb}.t.r"), {"approval"} | sweepers)
        self.assertEqual(self.who_may_publish("evt.turn.completed.t.r"), {"planner"} | sweepers)
        self.assertEqual(self.who_may_publish("evt.timer.fired.t.r"), sweepers)
        self.assertEqual(self.who_may_publish("evt.run.runnable.t.r"), set(SERVICES))
        self.assertEqual(self.who_may_publish("sig.t.r.c"), {"tool-executor", "ingress"})
        self.assertEqual(self.who_may_publish("in.default.github.push"), {"ingress", "publisher", "scheduler"})
        self.assertEqual(self.who_may_publish("in.other.github.push"), {"ingress", "scheduler"})

    def test_inboxes_are_apart(self):
        for user, rights in self.users.items():
            for other in set(SERVICES) - {user}:
                reads = any(matches(pattern, f"_INBOX_{other}.1") for pattern in rights["subscribe"]["allow"])
                self.assertEqual(reads, user == "operator", f"{user} reads replies to {other}")


class Configuration(unittest.TestCase):
    def test_every_user_has_its_password(self):
        passwords = Credentials().nats
        text = nats_config("127.0.0.1:4222", "/tmp/store", passwords)
        for password in passwords.values():
            self.assertEqual(text.count(password), 1)
        self.assertIn('listen: "127.0.0.1:4222"', text)
        self.assertIn("sync_interval: 1s", text)
        self.assertIn("sync_interval: 1h", nats_config("127.0.0.1:4222", "/tmp/store", passwords, for_tests=True))

    def test_an_open_server_has_no_users(self):
        self.assertNotIn("authorization", nats_config("127.0.0.1:4222", "/tmp/store"))


if __name__ == "__main__":
    unittest.main()
