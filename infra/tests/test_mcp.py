"""MCP: the protocol's own conformance suite against our client, and its reference servers through the whole product."""

import json
import os
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

from local import mcp

ROOT = Path(__file__).resolve().parent.parent.parent
# Within `infra/test` the parts are up; alone, only the suite can be run.
PARTS = ("ESC_TEST_NATS_URL", "ESC_TEST_DATABASE_URL", "ESC_TEST_REDIS_URL")


def kit():
    return mcp.get(ROOT / ".local" / "parts")


def built(*words, crate="tool-executor"):
    """What cargo builds, or has built for the other tests: the program of a crate."""
    features = ["--features", os.environ["ESC_FEATURES"]] if os.environ.get("ESC_FEATURES") else []
    words = ["cargo", words[0], "--quiet", "--workspace", *features, *words[1:], "--message-format=json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr[-4000:])
    made = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    ours = [one for one in made if one.get("executable") and f"/{crate}/" in one["manifest_path"]]
    return next(one["executable"] for one in ours if one["target"]["name"] == words[-2])


class Conformance(unittest.TestCase):
    def test_our_client_passes_the_core_of_the_suite(self):
        program = built("build", "--example", "mcp_conformance")
        with tempfile.TemporaryDirectory() as folder:
            words = kit().conformance + ["client", "--command", program, "--suite", "core", "-o", folder]
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
        said = done.stdout + done.stderr
        summary = said.partition("=== SUITE SUMMARY ===")[2]
        self.assertEqual(done.returncode, 0, said[-8000:])
        self.assertRegex(summary, r"Total: \d+ passed, 0 failed", said[-8000:])
        self.assertGreater(summary.count("✓"), 15, summary)


@unittest.skipUnless(all(name in os.environ for name in PARTS), "the parts are not up: infra/test brings them")
class ReferenceServers(unittest.TestCase):
    def test_they_work_through_registry_policy_call_and_result(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder).resolve()
            subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
            (folder / "hello.txt").write_text("hello from a file")
            port = free_port()
            http = subprocess.Popen(
                kit().everything_http(),
                env={"PORT": str(port), "PATH": os.environ["PATH"]},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                servers = {"folder": str(folder), "http": f"http://127.0.0.1:{port}/mcp", "stdio": kit().servers(folder)}
                env = {**os.environ, "ESC_TEST_MCP_SERVERS": json.dumps(servers)}
                words = [built("test", "--no-run", "--test", "it"), "--exact", "mcp_servers::the_reference_servers_work"]
                done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
            finally:
                http.kill()
                http.wait()
        self.assertEqual(done.returncode, 0, done.stdout[-8000:] + done.stderr[-2000:])
        self.assertIn("1 passed", done.stdout)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


if __name__ == "__main__":
    unittest.main()
