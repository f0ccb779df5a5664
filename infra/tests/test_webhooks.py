"""Webhooks: every payload that GitHub publishes, through the door, signed."""

import os
import subprocess
import unittest
from pathlib import Path

from local import octokit
from .test_mcp import PARTS, built

ROOT = Path(__file__).resolve().parent.parent.parent


@unittest.skipUnless(all(name in os.environ for name in PARTS), "the parts are not up: infra/test brings them")
class Payloads(unittest.TestCase):
    def test_each_of_them_becomes_an_event(self):
        env = {**os.environ, "ESC_TEST_OCTOKIT": str(octokit.get(ROOT / ".local" / "parts"))}
        test = "hooks::every_published_payload_of_github_is_an_event"
        words = [built("test", "--no-run", "--test", "it", crate="ingress"), "--exact", test]
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout[-8000:] + done.stderr[-2000:])
        self.assertIn("1 passed", done.stdout)


if __name__ == "__main__":
    unittest.main()
