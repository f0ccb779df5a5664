"""What the containers are given: each its own secrets, and no other's."""

import os
import re
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from local.settings import SERVICES

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"nats", "postgres", "valkey", "migrate", "esc", *SERVICES}


class Init(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def init(self, *words):
        program = [sys.executable, str(ROOT / "infra" / "docker" / "init"), *words]
        env = {**os.environ, "SECRETS_DIR": str(self.folder)}
        return subprocess.run(program, env=env, capture_output=True, text=True, check=True).stdout

    def files(self):
        return {
            str(file.relative_to(self.folder)): file.read_text() for file in self.folder.rglob("*") if file.is_file()
        }

    def test_a_second_start_finds_the_same_secrets(self):
        self.init()
        before = self.files()
        self.init()
        self.assertEqual(self.files(), before)
        self.assertEqual({name.split("/")[0] for name in before}, FOLDERS | {"own"})
        self.assertEqual(stat.S_IMODE((self.folder / "own" / "secrets.json").stat().st_mode), 0o600)

    def test_each_service_logs_in_as_itself(self):
        self.init()
        for service in SERVICES:
            told = (self.folder / service / "env").read_text()
            self.assertRegex(told, f"ESC_NATS_URL=nats://{service}:[0-9a-f]+@nats:4222")
            self.assertRegex(
                told, f"ESC_DATABASE_URL=postgres://esc_{service.replace('-', '_')}:[0-9a-f]+@postgres:5432/"
            )
            self.assertEqual("ESC_TOKENS=" in told, service == "ingress")

    def test_a_shell_outside_gets_the_published_ports(self):
        self.init()
        told = self.init("env")
        self.assertIn("export ESC_URL=http://127.0.0.1:8080\n", told)
        self.assertRegex(told, "export ESC_NATS_URL=nats://publisher:[0-9a-f]+@127.0.0.1:14222\n")


class ComposeFile(unittest.TestCase):
    def test_each_folder_of_secrets_is_a_volume_that_one_container_reads(self):
        text = (ROOT / "docker-compose.yml").read_text()
        for folder in FOLDERS:
            uses = re.findall(rf"- secrets-{folder}:(\S+)", text)
            self.assertEqual(uses[0], f"/secrets/{folder}")
            self.assertEqual([use.endswith(":ro") for use in uses[1:]], [True], folder)


if __name__ == "__main__":
    unittest.main()
