"""Events forged with each service's own credentials, on NATS and in Postgres: what a service that is taken over can't say."""

import os
import subprocess
import unittest
import uuid

from local.settings import SERVICES

from .own import own_stack
from .wire import NatsClient

# Who may write the events that decide something. Everybody reads all.
WRITERS = {
    "approval.endorsed": {"approval"},
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
    "run.revised": {"ingress"},
    "trust.declassified": {"ingress"},
    "run.paused": {"ingress", "scheduler"},
    "run.resumed": {"ingress", "scheduler"},
    "run.forked": {"ingress"},
    "plan.updated": {"planner"},
    "wait.registered": {"planner"},
    "context.compacted": {"planner"},
    "artifact.created": {"ingress", "planner", "artifact"},
    "tool.denied": {"tool-executor", "approval"},
    "tool.in_doubt": {"tool-executor"},
    "tool.reconciled": {"tool-executor"},
    "subagent.completed": {"scheduler"},
    "message.added": {"ingress", "planner"},
    "external.matched": {"ingress", "planner"},
}
# These publish again for everybody what the log holds and nobody has taken up.
SWEEPERS = {"scheduler", "ingress"}


class Forgery(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = own_stack(cls, "forgery")
        cls.stack.start_parts()
        cls.stack.migrate()
        cls.psql = cls.stack.parts[0].program.parent / "psql"

    def sql(self, service, statement):
        """Whether Postgres does it for this service; then it is undone."""
        url = self.stack.database_url(f"esc_{service.replace('-', '_')}")
        words = [str(self.psql), "-qXAt", "-v", "ON_ERROR_STOP=1", url, "-c", f"begin; {statement}; rollback"]
        env = {**os.environ, "PGOPTIONS": "-c search_path=escapement"}
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        refusals = ("permission denied", "row-level security", "must be owner", "only added to")
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

    def test_nobody_edits_who_people_are_what_they_allow_and_what_they_did(self):
        audit = "insert into audit (id, at, tenant, actor, roles, action, resource, outcome)" \
            " values (gen_random_uuid(), now(), 't', 'ann', '{}', 'a', 'r', 'done')"
        token = "insert into api_tokens (token_id, tenant, name, roles, sha256, created_by, expires_at)" \
            " values (gen_random_uuid(), 't', 'x', '{admin}', 'h', 'x', now() + interval '1 day')"
        standing = "insert into standing_approvals (standing_id, tenant, agent, agent_digest, tool, schema_digest, shape," \
            " reasons, arguments, approval_id, run_id, given_by) values (gen_random_uuid(), 't', 'a', 'd', 'm', 's', 'h'," \
            " '[]', '{}', gen_random_uuid(), gen_random_uuid(), 'x')"
        freeze = "insert into freezes (tenant, scope, is_on, by_whom) values ('t', 'tenant', false, 'x')"
        for statement, writers in (
            (audit, {"ingress", "approval"}),
            ("update audit set actor = 'bob'", set()),
            ("delete from audit", set()),
            ("truncate audit", set()),
            ("select evidence from audit", {"ingress", "approval"}),
            (token, {"ingress"}),
            ("select sha256 from api_tokens", {"ingress"}),
            ("update api_tokens set roles = '{admin}'", set()),
            ("update api_tokens set revoked_at = null", {"ingress"}),
            ("delete from api_tokens", set()),
            (standing, {"approval"}),
            ("update standing_approvals set shape = 'another'", set()),
            ("update standing_approvals set revoked_at = now()", {"ingress", "approval"}),
            ("update standing_approvals set confirmed_at = now()", {"approval"}),
            ("delete from standing_approvals", set()),
            (freeze, {"ingress"}),
            ("update freezes set is_on = false", set()),
            ("delete from freezes", set()),
        ):
            may = {service for service in SERVICES if self.sql(service, statement)}
            self.assertEqual(may, writers, statement)

    def test_even_the_owner_only_adds_to_the_audit_trail(self):
        audit = "insert into audit (id, at, tenant, actor, roles, action, resource, outcome)" \
            " values (gen_random_uuid(), now(), 't', 'ann', '{}', 'a', 'r', 'done')"
        self.assertTrue(self.sql("owner", audit))
        for statement in ("update audit set actor = 'bob'", "delete from audit", "truncate audit"):
            self.assertFalse(self.sql("owner", f"{audit}; {statement}"), statement)

    def test_nats_takes_each_event_from_its_own_writers_only(self):
        for service in SERVICES:
            with NatsClient(self.stack.ports["nats"], service, self.stack.credentials.nats[service]) as client:
                for event, writers in WRITERS.items():
                    subject = f"evt.{event}.default.{uuid.uuid4()}"
                    self.assertEqual(client.may_publish(subject), service in writers | SWEEPERS, f"{service}: {event}")
                for subject in ("svc.approval.decide", "svc.tool-executor.freeze", "svc.ingress.revoked"):
                    self.assertEqual(client.may_publish(subject), service == "ingress", f"{service}: {subject}")
                for subject, asks in (
                    ("svc.tool-executor.preview", "approval"),
                    ("svc.tool-executor.verify", "observer"),
                    ("svc.tool-executor.check", "observer"),
                    ("svc.planner.classify", "observer"),
                ):
                    self.assertEqual(client.may_publish(subject), service == asks, f"{service}: {subject}")


if __name__ == "__main__":
    unittest.main()
