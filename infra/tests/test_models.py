"""Models that fail at random, in each provider's own format, by a public stand-in: every run ends by itself."""

import json
import os
import socket
import subprocess
import time
import unittest

from local import mcp
from local.settings import Ports

from .own import ROOT, own_stack

# Runs of each format, and how long all of them together may take, in seconds.
RUNS, WITHIN = 6, 400
# How often the stand-in fails, by kind. Together about every second call.
CHAOS = {"drop": 0.15, "ratelimit": 0.15, "disconnect": 0.15, "malformed": 0.05}
# By provider: what stands behind the address of the stand-in.
FORMATS = {"openai": "/v1", "openai-responses": "/v1", "anthropic": "/v1", "gemini": "/v1beta"}
# A tool call first; once its result is there, the end.
FIXTURES = [
    {"match": {"userMessage": "pong-from-the-tool"}, "response": {"content": "It answered."}},
    {
        "match": {"userMessage": "Play ping"},
        "response": {"toolCalls": [{"name": "test_echo", "arguments": json.dumps({"text": "pong-from-the-tool"})}]},
    },
]


class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = own_stack(cls, "models")
        cls.url = cls.start_stand_in(cls.stack.state)
        cls.stack.start_parts()
        cls.stack.migrate()
        keys = {name: "sk-test" for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")}
        cls.stack.start_services(env={**keys, "ESC_MODEL_RETRY_SECONDS": "5"})
        for provider, path in FORMATS.items():
            agent = {
                "name": f"pinger-{provider}",
                "model": f"{provider}:stand-in",
                "base_url": f"{cls.url}{path}",
                "instructions": "Play ping.",
                "tools": ["test.echo"],
            }
            file = cls.stack.state / f"{provider}.yaml"
            file.write_text(json.dumps(agent))
            cls.stack.esc("agents", "apply", str(file), env=cls.stack.env())

    @classmethod
    def start_stand_in(cls, folder):
        fixtures = folder / "fixtures"
        fixtures.mkdir()
        (fixtures / "ping.json").write_text(json.dumps({"fixtures": FIXTURES}))
        # What may fetch for minutes comes first: meanwhile somebody else could be given the port.
        words = mcp.get(ROOT / ".local" / "parts").npm("@copilotkit/aimock", "dist/cli.js")
        taken = cls.stack.ports.numbers.values()
        port = next(port for port in Ports.free().numbers.values() if port not in taken)
        words += ["-p", str(port), "-f", str(fixtures), "--log-level", "silent"]
        words += [word for kind, rate in CHAOS.items() for word in (f"--chaos-{kind}", str(rate))]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        cls.addClassCleanup(process.wait)
        cls.addClassCleanup(process.kill)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return f"http://127.0.0.1:{port}"
            if process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError("the stand-in does not listen")

    def esc(self, *words):
        return json.loads(self.stack.esc("--json", *words, env=self.stack.env()).splitlines()[-1])

    def test_every_run_ends_by_itself_whatever_the_model_does(self):
        runs = []
        for provider in FORMATS:
            for number in range(RUNS):
                runs.append(self.esc("run", f"pinger-{provider}", f"Play ping {number}")["run_id"])
        deadline = time.monotonic() + WITHIN
        open_runs = set(runs)
        while open_runs and time.monotonic() < deadline:
            page = self.esc("runs", "--limit", "100")
            ended = {run["run_id"]: run for run in page["items"] if run["status"] in ("completed", "failed", "cancelled")}
            open_runs -= ended.keys()
            time.sleep(0.2)
        self.assertFalse(open_runs, f"{len(open_runs)} of {len(runs)} runs are not over after {WITHIN} s")
        completed = [run for run in runs if ended[run]["status"] == "completed"]
        # What fails does so by a rule, after it was asked again and again; most get through.
        for run in set(runs) - set(completed):
            self.assertEqual(ended[run]["rule"], "unrecoverable", ended[run])
        self.assertGreaterEqual(len(completed), len(runs) * 0.8, ended)
        dead = self.stack.esc("--json", "dlq", "list", env=self.stack.operator_env())
        self.assertEqual(json.loads(dead.splitlines()[-1])["items"], [], "nothing is left for a person to look after")


if __name__ == "__main__":
    unittest.main()
