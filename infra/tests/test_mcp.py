"""MCP: the protocol's own conformance suite against our client, and its reference servers through the whole product."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from local import mcp
from local.settings import Ports

from .rust import built, needs_parts, passes

ROOT = Path(__file__).resolve().parent.parent.parent


def kit():
    return mcp.get(ROOT / ".local" / "parts")


class Conformance(unittest.TestCase):
    def test_our_client_passes_the_core_of_the_suite(self):
        program = built("tool-executor", "build", "--example", "mcp_conformance")
        with tempfile.TemporaryDirectory() as folder:
            words = kit().conformance + ["client", "--command", program, "--suite", "core", "-o", folder]
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
        said = done.stdout + done.stderr
        summary = said.partition("=== SUITE SUMMARY ===")[2]
        self.assertEqual(done.returncode, 0, said[-8000:])
        self.assertRegex(summary, r"Total: \d+ passed, 0 failed", said[-8000:])
        self.assertGreater(summary.count("✓"), 15, summary)


@needs_parts
class ReferenceServers(unittest.TestCase):
    def test_they_work_through_registry_policy_call_and_result(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder).resolve()
            subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
            (folder / "hello.txt").write_text("hello from a file")
            # What may fetch for minutes comes first: meanwhile somebody else could be given the port.
            words, stdio = kit().everything_http(), kit().servers(folder)
            port = Ports.free()["ingress"]
            http = subprocess.Popen(
                words,
                env={"PORT": str(port), "PATH": os.environ["PATH"]},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                servers = {"folder": str(folder), "http": f"http://127.0.0.1:{port}/mcp", "stdio": stdio}
                test = "mcp_servers::the_reference_servers_work"
                passes(self, "tool-executor", test, ESC_TEST_MCP_SERVERS=json.dumps(servers))
            finally:
                http.kill()
                http.wait()


if __name__ == "__main__":
    unittest.main()
