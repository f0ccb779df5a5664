"""The tutorial, command by command, as a newcomer types them."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from local import Stack
from local.settings import Ports, is_free

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "TUTORIAL.md").read_text()


class Tutorial(unittest.TestCase):
    def test_every_command_does_what_it_says(self):
        commands = re.findall(r"^```sh\n(.*?)^```", TEXT, re.M | re.S)
        self.assertGreater(len(commands), 8)
        # Agents and state of its own, so that nobody's are touched.
        home = Path(tempfile.mkdtemp(prefix="escapement-tutorial-"))
        home.chmod(0o755)
        self.addCleanup(shutil.rmtree, home, ignore_errors=True)
        script = "\n".join(["set -euo pipefail", "trap 'infra/down --wipe >/dev/null 2>&1 || true' EXIT", *commands])
        programs = str(Stack(ROOT, Ports.free(), home).program("esc").parent)
        names = {
            "$PWD/target/debug": programs,
            "$PWD/my-agents": "my-agents",
            "my-agents": f"{home}/my-agents",
            ". .local/": f". {home}/",
        }
        for named, real in names.items():
            script = script.replace(named, real)
        env = {**os.environ, **_ports(), "ESC_LOCAL": str(home), "ESC_BUILD_TESTS": "1"}
        # The programs as the tests before this have built them.
        env["ESC_PROFILE"] = "dev"
        played = subprocess.run(["bash", "-c", script], cwd=ROOT, env=env, capture_output=True, text=True, timeout=240)
        said = played.stdout + played.stderr
        self.assertEqual(played.returncode, 0, said[-4000:])
        for expected in (r"starts +reviewer", r"done +review\.post", r"● completed", r"(?s)run\.completed.*github\.pull_request\.opened"):
            self.assertRegex(said, expected)


def _ports():
    """Settings that keep this stack out of the way of others: the services need ports in a row."""
    free = Ports.free().numbers
    base = next(base for base in range(23000, 60000, 50) if all(is_free(base + place) for place in range(8)))
    named = {"ESC_API_PORT": free["ingress"], "ESC_PORT_BASE": base}
    named |= {f"ESC_{name}_PORT": free[part] for name, part in (("NATS", "nats"), ("POSTGRES", "postgres"), ("REDIS", "valkey"))}
    return {name: str(port) for name, port in named.items()}


if __name__ == "__main__":
    unittest.main()
