"""The HTTP API against its own description: Schemathesis calls every operation with what fits the description and what does not, and
looks at every answer. With ESC_TEST_LONG it does so for a long time."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from local import Ports, Stack, schemathesis

ROOT = Path(__file__).resolve().parent.parent.parent
LONG = bool(os.environ.get("ESC_TEST_LONG"))
EXAMPLES = 200 if LONG else 2
# What every operation must keep to. That what does not fit is refused is judged by the status alone; what fits may be refused as
# well, for there may be no such run.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "ignored_auth",
)
# It does not end by itself, and has its own tests.
LEFT_OUT = "/stream$"


@unittest.skipIf(sys.version_info < (3, 10), "Schemathesis needs Python 3.10 or newer")
class Description(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        state = Path(tempfile.mkdtemp(prefix="escapement-api-"))
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
        cls.stack.start_services(env={"ESC_LOG": "warn"})
        cls.stack.apply_agents()

    def test_every_answer_is_as_described(self):
        words, env = schemathesis.get(ROOT / ".local" / "parts")
        url = f"http://127.0.0.1:{self.stack.ports['ingress']}"
        token = self.stack.env()["ESC_TOKEN"]
        words = words + [
            "run", f"{url}/openapi.json", "--url", url,
            "--header", f"Authorization: Bearer {token}",
            "--checks", ",".join(CHECKS),
            "--exclude-path-regex", LEFT_OUT,
            "--phases", "examples,coverage,fuzzing,stateful" if LONG else "examples,fuzzing",
            "--max-examples", str(EXAMPLES),
            "--seed", "1",
            "--workers", "4",
            "--request-timeout", "20",
            "--generation-database", "none",
            "--no-color",
        ]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(words, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=3000)
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-20000:])


if __name__ == "__main__":
    unittest.main()
