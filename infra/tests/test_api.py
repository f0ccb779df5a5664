"""The HTTP API against its own description: Schemathesis calls every operation with what fits the description and what does not, and
looks at every answer. With ESC_TEST_LONG it does so for a long time. And what Prometheus scrapes, by a strict reader of OpenMetrics."""

import os
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from local import schemathesis, wheels

from .own import ROOT, own_stack

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
        cls.stack = own_stack(cls, "api")
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

    def test_what_prometheus_scrapes_is_open_metrics_and_leads_to_traces(self):
        (parser,) = wheels.load("prometheus-client", "0.23.1", ROOT / ".local" / "parts", "prometheus_client.openmetrics.parser")
        agent = self.stack.state / "metered.yaml"
        agent.write_text("name: metered\nmodel: scripted:complete\ninstructions: Complete.\n")
        env = self.stack.env()
        self.stack.esc("agents", "apply", str(agent), env=env)
        self.stack.esc("run", "metered", "Complete.", "--follow", env=env)
        exemplars = {}
        for name, service in self.stack.services.items():
            families = list(parser.text_string_to_metric_families(_scrape(service.port)))
            self.assertTrue(families, name)
            found = [(one.name, one.exemplar) for family in families for one in family.samples if one.exemplar]
            exemplars[name] = {sample: exemplar.labels for sample, exemplar in found}
        asked = exemplars["planner"]["gen_ai_client_operation_duration_seconds_bucket"]
        self.assertEqual({key: len(value) for key, value in asked.items()}, {"trace_id": 32, "span_id": 16})


def _scrape(port):
    """The metrics of a service as Prometheus asks for them."""
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        return answer.read().decode()


if __name__ == "__main__":
    unittest.main()
