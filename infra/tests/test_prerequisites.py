"""What is missing on a machine is said in one sentence each."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from collections import namedtuple
from pathlib import Path
from unittest import mock

from local import parts, prerequisites
from local.problem import Problem

INFRA = Path(__file__).resolve().parents[1]
ROOT = INFRA.parent
Disk = namedtuple("Disk", "total used free")


class Prerequisites(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "Cargo.toml").write_text('rust-version = "1.95"\n')
        bare = {"PATH": str(self.root), "HOME": str(self.root)}
        patch = mock.patch.dict(os.environ, bare, clear=True)
        patch.start()
        self.addCleanup(patch.stop)

    def tool(self, name, says):
        program = self.root / name
        program.write_text(f"#!/bin/sh\necho '{says}'\n")
        program.chmod(0o755)

    def test_everything_missing_is_named_at_once(self):
        with self.assertRaisesRegex(Problem, "No Rust toolchain.*No C compiler"):
            prerequisites.check(self.root)

    def test_an_old_toolchain_is_named_with_both_versions(self):
        self.tool("cargo", "cargo 1.80.1 (376290515 2024-07-16)")
        self.tool("cc", "")
        with self.assertRaisesRegex(Problem, "^cargo is 1.80.1 and 1.95 or newer is needed"):
            prerequisites.check(self.root)

    def test_what_is_there_is_enough(self):
        self.tool("cargo", "cargo 1.95.0")
        self.tool("clang", "")
        prerequisites.check(self.root)

    def test_a_full_disk_is_named(self):
        with mock.patch("shutil.disk_usage", return_value=Disk(1 << 40, 1 << 40, 7 << 20)):
            with self.assertRaisesRegex(Problem, "has 7 MiB free and 1024 MiB are needed"):
                prerequisites.check(self.root, building=False)

    def test_an_old_python_is_named_before_anything_else(self):
        code = f"import sys; sys.version_info = (3, 8); sys.path.insert(0, {str(INFRA)!r}); import local"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(done.stderr.strip(), "Python 3.9 or newer is needed and this is 3.8: install a newer python3.")


class Profiles(unittest.TestCase):
    def test_each_package_that_is_built_in_its_own_way_is_there(self):
        """Cargo warns of one that is not, and goes on."""
        section = re.search(r"^\[profile\.dev\.package\]\n(.*?)(?=^\[|\Z)", (ROOT / "Cargo.toml").read_text(), re.M | re.S)[1]
        named = set(re.findall(r"^([\w-]+) *=", section, re.M))
        locked = set(re.findall(r'^name = "([^"]+)"$', (ROOT / "Cargo.lock").read_text(), re.M))
        self.assertGreater(len(named), 10)
        self.assertEqual(named - locked, set())


class PartsWithoutPip(unittest.TestCase):
    """Where pip can't deliver, a server on PATH will do if it is new enough."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for patch in (
            mock.patch.dict(os.environ, PATH=str(self.folder)),
            mock.patch.object(parts, "_install", return_value="pip said: no."),
            mock.patch.object(parts, "say"),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def server(self, version):
        program = self.folder / "nats-server"
        program.write_text(f"#!/bin/sh\necho 'nats-server: v{version}'\n")
        program.chmod(0o755)
        return program

    def test_new_enough(self):
        program = self.server("2.14.0")
        self.assertEqual(parts.get("nats", self.folder), program)

    def test_too_old_or_none(self):
        for version in ("2.9.25", None):
            if version:
                self.server(version)
            else:
                (self.folder / "nats-server").unlink()
            with self.assertRaisesRegex(Problem, "no nats-server 2.14 or newer is on PATH. pip said: no."):
                parts.get("nats", self.folder)


if __name__ == "__main__":
    unittest.main()
