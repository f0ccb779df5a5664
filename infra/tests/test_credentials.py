"""Secrets: made once, private, and each service gets its own."""

import hashlib
import json
import stat
import subprocess
import tempfile
import unittest
from pathlib import Path

from local.credentials import NATS_USERS, POSTGRES_ROLES, Credentials
from local.services import environment, inherited
from local.settings import SERVICES, Ports
from local.stack import Stack


class Secrets(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "secrets.json"

    def test_they_are_made_once_and_are_private(self):
        first = Credentials.keep(self.file)
        self.assertEqual(vars(first), vars(Credentials.keep(self.file)))
        self.assertEqual(stat.S_IMODE(self.file.stat().st_mode), 0o600)

    def test_what_an_older_file_lacks_is_added(self):
        kept = vars(Credentials.keep(self.file))
        lost = json.loads(json.dumps(kept))
        del lost["nats"]["observer"]
        self.file.write_text(json.dumps(lost))
        again = vars(Credentials.keep(self.file))
        self.assertEqual(again["nats"]["planner"], kept["nats"]["planner"])
        self.assertIn("observer", again["nats"])

    def test_no_two_are_alike(self):
        made = Credentials()
        every = (
            list(made.nats.values())
            + list(made.postgres.values())
            + list(made.tokens.values())
            + [made.valkey, made.internal]
        )
        self.assertEqual(len(set(every)), len(NATS_USERS) + len(POSTGRES_ROLES) + 4 + 2)

    def test_the_token_file_holds_hashes_only(self):
        made = Credentials()
        rows = json.loads(made.token_file())
        self.assertEqual([row["name"] for row in rows], ["operator", "user", "viewer", "publisher"])
        for row in rows:
            token = made.tokens[row["name"]]
            self.assertEqual(row["sha256"], hashlib.sha256(token.encode()).hexdigest())
            self.assertNotIn(token, made.token_file())


class WhatAServiceIsTold(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.stack = Stack(Path(folder.name), Ports.from_env({}), Path(folder.name) / ".local")

    def test_each_has_its_own_credentials_and_no_others(self):
        secrets = self.stack.credentials
        for service in SERVICES:
            told = " ".join(environment(service, 1, self.stack).values())
            self.assertIn(secrets.nats[service], told)
            for other, password in secrets.nats.items():
                self.assertEqual(other == service, password in told, f"{service} and {other}")
            for token in secrets.tokens.values():
                self.assertNotIn(token, told)

    def test_a_sourced_env_file_changes_nothing_inside(self):
        outside = {"ESC_NATS_URL": "nats://publisher@x", "ESC_TOKEN": "t", "ESC_LOG": "debug", "PATH": "/bin"}
        self.assertEqual(inherited("planner", outside), {"ESC_LOG": "debug", "PATH": "/bin"})

    def test_keys_go_only_where_they_are_used(self):
        outside = {"OPENAI_API_KEY": "k", "AWS_SECRET_ACCESS_KEY": "s", "ESC_PLANNER__LOG": "debug"}
        self.assertEqual(set(inherited("planner", outside)), {"OPENAI_API_KEY", "ESC_PLANNER__LOG"})
        self.assertEqual(set(inherited("artifact", outside)), {"AWS_SECRET_ACCESS_KEY"})
        self.assertEqual(set(inherited("tool-executor", outside)), set())

    def test_the_env_file_gives_no_way_in_behind_the_api(self):
        self.stack.write_env()
        env, operator = self.stack.state / "env", self.stack.state / "env.operator"
        self.assertIn("export ESC_TOKEN=", env.read_text())
        self.assertIn("nats://publisher:", env.read_text())
        self.assertNotIn("postgres://", env.read_text())
        self.assertIn("postgres://esc_owner:", operator.read_text())
        for file in (env, operator):
            self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)

    def test_the_env_file_finds_esc_however_often_it_is_read(self):
        self.stack.write_env()
        script = f". '{self.stack.state}/env'; . '{self.stack.state}/env'; echo \"$PATH\""
        path = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.strip()
        folder = str(self.stack.program("esc").parent)
        self.assertTrue(path.startswith(f"{folder}:"), path)
        self.assertEqual(path.count(folder), 1, path)


if __name__ == "__main__":
    unittest.main()
