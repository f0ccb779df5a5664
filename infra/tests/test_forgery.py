"""Events forged with each service's own credentials, on NATS and in Postgres: what a service that is taken over can't say."""

import os
import shutil
import subprocess
import tempfile
import unittest
import uuid
from pathlib import Path

from local.settings import SERVICES, Ports
from local.stack import Stack

from .wire import NatsClient

ROOT = Path(__file__).resolve().parents[2]
# Who may write the events that decide something. Everybody reads all.
WRITERS = {
    "approval.granted": {"approval"},
    "approval.denied": {"approval"},
    "approval.requested": {"planner", "tool-executor"},
    "turn.completed": {"planner"},
    "tool.requested": {"planner", "tool-executor"},
    "tool.started": {"tool-executor"},
    "tool.completed": {"tool-executor", "observer"},
    "observation.recorded": {"observer", "tool-executor"},
    "timer.fired": {"scheduler"},
    "run.created": {"ingress", "scheduler"},
    "budget.changed": {"ingress", "scheduler"},
    "message.added": {"ingress", "planner"},
    "external.matched": {"ingress", "planner"},
}
# These publish again for everybody what the log holds and nobody has taken up.
SWEEPERS = {"scheduler", "ingress"}


class Forgery(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        state = Path(tempfile.mkdtemp(prefix="escapement-forgery-"))
        # The unprivileged account that Postgres runs as under root must be able to pass.
        state.chmod(0o755)
        cls.addClassCleanup(shutil.rmtree, state, ignore_errors=True)
        cls.stack = Stack(ROOT, Ports.free(), state)
        if not cls.stack.program("esc").exists():
            raise unittest.SkipTest("`esc` is not built")
        cls.addClassCleanup(cls.stack.wipe)
        cls.addClassCleanup(cls.stack.stop)
        cls.stack.start_parts()
        cls.stack.migrate()
        cls.psql = cls.stack.parts[0].program.parent / "psql"

    def sql(self, service, statement):
        """Whether Postgres does it for this service; then it is undone."""
        url = self.stack.database_url(f"esc_{service.replace('-', '_')}")
        words = [str(self.psql), "-qXAt", "-v", "ON_ERROR_STOP=1", url, "-c", f"begin; {statement}; rollback"]
        env = {**os.environ, "PGOPTIONS": "-c search_path=escapement"}
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        refusals = ("permission denied", "row-level security", "must be owner")
        if done.returncode and not any(refusal in done.stderr for refusal in refusals):
            self.fail(f"{service}: {statement}: {done.stderr}")
        return done.returncode == 0

    def test_postgres_takes_each_event_from_its_own_writers_only(self):
        for event, writers in WRITERS.items():
            insert = (
                "insert into events (run_id, seq, tenant, type, version, at, cause, data)"
                f" values ('{uuid.uuid4()}', 1, 'default', '{event}', 1, now(), '{{}}', '{{}}')"
            )
            may = {service for service in SERVICES if self.sql(service, insert)}
            self.assertEqual(may, writers, event)

    def test_the_log_is_not_rewritten_by_anybody(self):
        for statement in (
            "update events set type = 'approval.granted'",
            "delete from events",
            "truncate events",
            "drop table events",
            "alter table events disable row level security",
            "create policy mine on events for insert with check (true)",
            "set role esc_approval",
        ):
            may = {service for service in SERVICES if service != "approval" and self.sql(service, statement)}
            self.assertEqual(may, set(), statement)

    def test_nats_takes_each_event_from_its_own_writers_only(self):
        for service in SERVICES:
            with NatsClient(self.stack.ports["nats"], service, self.stack.credentials.nats[service]) as client:
                for event, writers in WRITERS.items():
                    subject = f"evt.{event}.default.{uuid.uuid4()}"
                    self.assertEqual(client.may_publish(subject), service in writers | SWEEPERS, f"{service}: {event}")
                self.assertEqual(client.may_publish("svc.approval.decide"), service == "ingress", service)


if __name__ == "__main__":
    unittest.main()
