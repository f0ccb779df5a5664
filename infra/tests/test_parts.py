"""The real parts, with passwords and permissions as `infra/up` starts them."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from local.problem import Problem
from local.settings import OWNER, SERVICES, Ports
from local.stack import Stack

from .wire import NatsClient, redis_says

ROOT = Path(__file__).resolve().parents[2]


class RealParts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="escapement-parts-")
        cls.addClassCleanup(folder.cleanup)
        os.chmod(folder.name, 0o755)
        cls.stack = Stack(ROOT, Ports.free(), folder.name)
        cls.addClassCleanup(cls.stack.wipe)
        cls.addClassCleanup(cls.stack.stop)
        cls.stack.start_parts()

    def client(self, user):
        client = NatsClient(self.stack.ports["nats"], user, self.stack.credentials.nats[user])
        self.addCleanup(client.__exit__)
        return client

    def sql(self, role, statement, password=None):
        url = self.stack.database_url(role)
        if password:
            url = url.replace(self.stack.credentials.postgres[role], password)
        psql = str(Path(self.stack.parts[0].program).parent / "psql")
        return subprocess.run([psql, "-XAtq", url, "-c", statement], capture_output=True, text=True)

    def test_starting_again_leaves_them_alone(self):
        before = [part.process.pid for part in self.stack.parts]
        self.stack.start_parts()
        self.assertEqual(before, [part.process.pid for part in self.stack.parts])

    def test_each_nats_user_may_do_its_own_work(self):
        own = {
            "ingress": ["in.default.github.push", "svc.approval.decide", "evt.run.created.default.r"],
            "planner": ["evt.turn.completed.default.r", "evt.tool.requested.default.r", "live.default.r"],
            "tool-executor": ["evt.tool.completed.default.r", "sig.default.r.c", "evt.approval.requested.default.r"],
            "observer": ["evt.observation.recorded.default.r"],
            "scheduler": ["evt.timer.fired.default.r"],
            "approval": ["evt.approval.granted.default.r"],
            "artifact": ["evt.artifact.created.default.r"],
            "publisher": ["in.default.github.push", "log.default.web"],
        }
        for user, subjects in own.items():
            client = self.client(user)
            for subject in subjects:
                self.assertTrue(client.may_publish(subject), f"{user} on {subject}")
            self.assertTrue(client.may_subscribe(f"_INBOX_{user}.>"), user)

    def test_a_nats_user_may_do_nothing_else(self):
        others = {
            "tool-executor": ["evt.approval.granted.default.r", "svc.approval.decide", "in.default.github.push"],
            "planner": ["evt.approval.granted.default.r", "evt.tool.completed.default.r", "sig.default.r.c", "svc.approval.decide"],
            "observer": ["evt.approval.granted.default.r", "evt.turn.completed.default.r"],
            "publisher": ["in.other.github.push", "evt.run.created.default.r", "$JS.API.STREAM.INFO.EVENTS", "svc.approval.decide"],
        }
        for user, subjects in others.items():
            client = self.client(user)
            for subject in subjects:
                self.assertFalse(client.may_publish(subject), f"{user} on {subject}")
        for user in SERVICES:
            client = self.client(user)
            for verb in ("CREATE", "UPDATE", "DELETE", "PURGE", "MSG.DELETE"):
                self.assertFalse(client.may_publish(f"$JS.API.STREAM.{verb}.EVENTS"), f"{user} {verb}")
            self.assertFalse(client.may_publish("$JS.API.CONSUMER.DELETE.EVENTS.planner"), user)
            self.assertFalse(client.may_subscribe("_INBOX.>"), user)
            self.assertFalse(client.may_subscribe("_INBOX_operator.>"), user)

    def test_the_operator_may_make_streams(self):
        reply = self.client("operator").request("$JS.API.STREAM.CREATE.TRY", '{"name": "TRY", "subjects": ["try.>"]}')
        self.assertEqual(reply.get("error"), None)

    def test_nats_wants_a_password(self):
        with NatsClient(self.stack.ports["nats"], "planner", "guess") as client:
            with self.assertRaises(ConnectionError):
                client.may_publish("live.default.r")

    def test_each_postgres_role_needs_its_password_and_has_no_power(self):
        for role in ("esc_planner", "esc_tool_executor"):
            self.assertEqual(self.sql(role, "select current_user").stdout.strip(), role)
            self.assertIn("authentication failed", self.sql(role, "select 1", password="guess").stderr)
            self.assertIn("permission denied", self.sql(role, "create schema mine").stderr)
            self.assertIn("permission denied", self.sql(role, "create table public.mine()").stderr)
        self.assertEqual(self.sql(OWNER, "create schema try; drop schema try").returncode, 0)

    def test_commits_are_durable_and_only_loopback_listens(self):
        self.assertEqual(self.sql(OWNER, "show fsync").stdout.strip(), "on")
        self.assertEqual(self.sql(OWNER, "show listen_addresses").stdout.strip(), "127.0.0.1")
        self.assertEqual(self.sql(OWNER, "show unix_socket_directories").stdout.strip(), "")

    def test_valkey_wants_a_password_and_evicts_nothing(self):
        port, password = self.stack.ports["valkey"], self.stack.credentials.valkey
        self.assertIn("NOAUTH", redis_says(port, "PING")[0])
        self.assertEqual(redis_says(port, f"AUTH {password}", "PING"), ["+OK", "+PONG"])

    def test_a_second_stack_on_the_same_ports_names_the_clash(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            second = Stack(ROOT, self.stack.ports, folder)
            with self.assertRaisesRegex(Problem, f"Port {self.stack.ports['postgres']}, meant for postgres, is in use.*ESC_POSTGRES_PORT"):
                second.start_parts()


if __name__ == "__main__":
    unittest.main()
