"""Webhooks: every payload that GitHub publishes, through the door, signed."""

import unittest
from pathlib import Path

from local import octokit
from .rust import needs_parts, passes

ROOT = Path(__file__).resolve().parent.parent.parent


@needs_parts
class Payloads(unittest.TestCase):
    def test_each_of_them_becomes_an_event(self):
        payloads = str(octokit.get(ROOT / ".local" / "parts"))
        passes(self, "ingress", "hooks::every_published_payload_of_github_is_an_event", ESC_TEST_OCTOKIT=payloads)


if __name__ == "__main__":
    unittest.main()
