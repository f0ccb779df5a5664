"""The real parts, with passwords and permissions as `infra/up` starts them."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from local.problem import Problem
from local.settings import OWNER, SERVICES, Ports
from local.stack import Stack

from .own import in_time
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

    def test_a_later_command_sees_how_they_are(self):
        def status():
            return {row[0]: row for row in Stack(ROOT, self.stack.ports, self.stack.state).status()}

        # One look waits for a second only.
        rows = in_time(status, lambda rows: all(rows[part.name][3] == "yes" for part in self.stack.parts))
        for part in self.stack.parts:
            where, pid = f"127.0.0.1:{part.port}", str(part.process.pid)
            self.assertEqual(rows[part.name][1:4], (where, pid, "yes"))
            self.assertRegex(rows[part.name][4], r"^\d+\.\d+")

    def test_each_nats_user_may_do_its_own_work(self):
        own = {
            "ingress": ["in.default.github.push", "svc.approval.decide", "evt.run.created.default.r"],
            "planner": ["evt.turn.completed.default.r", "evt.tool.requested.default.r", "live.default.r"],
            "tool-executor": ["evt.tool.completed.default.r", "sig.default.r.c", "evt.approval.requested.default.r"],
            "observer": ["evt.observation.recorded.default.r", "svc.planner.classify"],
            "scheduler": ["evt.timer.fired.default.r"],
            "approval": ["evt.approval.endorsed.default.r", "evt.approval.granted.default.r"],
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
            "tool-executor": [
                "evt.approval.endorsed.default.r",
                "evt.approval.granted.default.r",
                "svc.approval.decide",
                "in.default.github.push",
            ],
            "planner": [
                "evt.approval.granted.default.r",
                "evt.tool.completed.default.r",
                "sig.default.r.c",
                "svc.approval.decide",
            ],
            "observer": ["evt.approval.granted.default.r", "evt.turn.completed.default.r"],
            "publisher": [
                "in.other.github.push",
                "evt.run.created.default.r",
                "$JS.API.STREAM.INFO.EVENTS",
                "svc.approval.decide",
            ],
        }
        for user, subjects in others.items():
            client = self.client(user)
            for subject in subjects:
                self.assertFalse(client.may_publish(subject), f"{user} on {subject}")
        for user in SERVICES:
            client = self.client(user)
            for verb in ("UPDATE", "DELETE", "PURGE", "MSG.DELETE"):
                self.assertFalse(client.may_publish(f"$JS.API.STREAM.{verb}.EVENTS"), f"{user} {verb}")
            self.assertFalse(client.may_publish("$JS.API.STREAM.CREATE.MINE"), user)
            self.assertFalse(client.may_publish("$JS.API.CONSUMER.CREATE.EVENTS.mine"), user)
            self.assertFalse(client.may_publish("$JS.API.CONSUMER.DELETE.EVENTS.planner"), user)
            self.assertFalse(client.may_subscribe("_INBOX.>"), user)
            self.assertFalse(client.may_subscribe("_INBOX_operator.>"), user)

    def test_a_consumer_is_read_by_its_owner_alone(self):
        operator = self.client("operator")
        stream = {"name": "EVENTS", "subjects": ["evt.>"]}
        consumer = {"stream_name": "EVENTS", "config": {"durable_name": "planner", "ack_policy": "explicit"}}
        for subject, body in (("STREAM.CREATE.EVENTS", stream), ("CONSUMER.CREATE.EVENTS.planner", consumer)):
            self.assertNotIn("error", operator.request(f"$JS.API.{subject}", body))
        operator.request("evt.run.runnable.default.r", {"what": "a run may go on"})

        planner = self.client("planner")
        planner.request("$JS.API.CONSUMER.MSG.NEXT.EVENTS.planner", {"batch": 1}, inbox="_INBOX_planner.1")
        self.assertTrue(planner.reply_to.startswith("$JS.ACK.EVENTS.planner."), planner.reply_to)
        self.assertTrue(planner.may_publish(planner.reply_to))
        observer = self.client("observer")
        self.assertFalse(observer.may_publish("$JS.API.CONSUMER.MSG.NEXT.EVENTS.planner"))
        self.assertFalse(observer.may_publish(planner.reply_to))

    def test_a_service_that_is_asked_may_answer(self):
        approval, ingress = self.client("approval"), self.client("ingress")
        self.assertTrue(approval.may_subscribe("svc.approval.decide"))
        approval.answer_next({"decided": True})
        reply = ingress.request("svc.approval.decide", {}, inbox="_INBOX_ingress.1")
        self.assertEqual(reply, {"decided": True})

    def test_every_service_may_create_anew_what_the_server_lost(self):
        for user in SERVICES:
            client = self.client(user)
            for call in (
                "STREAM.CREATE.EVENTS",
                "CONSUMER.CREATE.EVENTS.planner.evt.run.runnable.>",
                "STREAM.CREATE.DLQ",
            ):
                self.assertTrue(client.may_publish(f"$JS.API.{call}"), f"{user} {call}")

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
            with self.assertRaisesRegex(
                Problem, f"Port {self.stack.ports['postgres']}, meant for postgres, is in use.*ESC_POSTGRES_PORT"
            ):
                second.start_parts()


class AStateFolderClosedToOthers(unittest.TestCase):
    @unittest.skipUnless(os.geteuid() == 0, "only root runs Postgres as somebody else")
    def test_postgres_then_lives_elsewhere_and_is_wiped_from_there(self):
        with tempfile.TemporaryDirectory() as folder:
            postgres = Stack(ROOT, Ports.free(), folder, open_parts=True).parts[0]
            self.addCleanup(postgres.wipe)
            self.addCleanup(postgres.stop)
            with mock.patch("local.servers.say") as said:
                postgres.get()
            self.assertIn("Postgres keeps its data in", said.call_args[0][0])
            postgres.launch()
            postgres.wait()
            self.assertFalse(postgres.home.is_relative_to(folder))
            home = postgres.home
            postgres.stop()
            postgres.wipe()
            self.assertFalse(home.exists())


if __name__ == "__main__":
    unittest.main()
