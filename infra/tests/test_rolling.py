"""Rolling restarts under load, and those who look on: requests that go on to the next instance, streams that are taken up there."""

import json
import os
import socket
import subprocess
import sys
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "loadtest"))

from mixed import Door, Streams  # noqa: E402  the path is set just above
from mixed.door import Refused, Unknown  # noqa: E402

_TOKENS = {"operator": "operator-token"}


class Instance:
    """What answers like ingress: `answer(path, headers)` gives a status and a body. Closed without an answer for None."""

    def __init__(self, test, answer):
        self.asked = []
        instance = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                instance.asked.append(self.headers)
                said = answer(self.path, self.headers)
                if said is None:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                status, body = said
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *words):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        test.addCleanup(server.server_close)
        test.addCleanup(server.shutdown)
        self.url = f"http://127.0.0.1:{server.server_port}"


def _nobody():
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        return f"http://127.0.0.1:{held.getsockname()[1]}"


class Requests(unittest.TestCase):
    def test_what_one_instance_does_not_answer_another_does(self):
        good = Instance(self, lambda *_: (200, '{"ok": true}'))
        for bad in (_nobody(), Instance(self, lambda *_: (503, "draining")).url, Instance(self, lambda *_: None).url):
            door = Door([bad, good.url], _TOKENS)
            self.assertEqual([door.get("/x") for _ in range(4)], [{"ok": True}] * 4)
            self.assertEqual((door.requests, sum(door.retries.values()), dict(door.failed)), (4, 2, {}))

    def test_what_nobody_answers_has_failed(self):
        door = Door([_nobody(), Instance(self, lambda *_: (503, "draining")).url], _TOKENS)
        run = "01890a5d-ac96-774b-bcce-b302099a8057"
        with self.assertRaises(Unknown):
            door.get(f"/v1/runs/{run}/events?after=1")
        self.assertEqual(dict(door.failed), {"GET /v1/runs/{id}/events: 503": 1})

    def test_a_no_is_an_answer(self):
        other = Instance(self, lambda *_: (200, "{}"))
        door = Door([Instance(self, lambda *_: (409, "conflict")).url, other.url], _TOKENS)
        with self.assertRaises(Refused):
            door.get("/x")
        self.assertEqual((other.asked, dict(door.retries)), ([], {}))


class Followed(unittest.TestCase):
    def streams(self, *pieces):
        """Follow one run over instances that each say one piece of its stream."""
        instances = [Instance(self, lambda *_, piece=piece: (200, piece)) for piece in pieces]
        streams = Streams([instance.url for instance in instances], "viewer-token")
        streams.follow("a-run")
        return streams, [instance.asked for instance in instances]

    def test_a_stream_that_is_cut_goes_on_at_the_next_instance(self):
        first = ": hello\n\nevent: snapshot\nid: 9\ndata: {}\n\nid: 1\nevent: run.created\ndata: {}\n\nid: 2\nevent: run.run"
        second = "event: snapshot\ndata: {}\n\nid: 2\nevent: run.runnable\ndata: {}\n\nevent: delta\ndata: {}\n\n"
        third = "id: 3\nevent: run.completed\ndata: {}\n\n"
        streams, asked = self.streams(first, second, third)
        self.assertEqual(streams.violations, [])
        self.assertEqual((streams.opened, streams.events), (3, 3))
        self.assertEqual([headers[0]["Last-Event-ID"] for headers in asked], ["0", "1", "2"])

    def test_a_gap_and_a_repeat_are_seen(self):
        streams, _ = self.streams("id: 1\nevent: a\n\nid: 3\nevent: b\n\n", "id: 3\nevent: b\n\nid: 4\nevent: run.failed\n\n")
        self.assertEqual([violation["rule"] for violation in streams.violations], ["stream.gap", "stream.repeat"])

    def test_a_stream_of_a_run_that_is_not_there_is_a_violation(self):
        streams = Streams([Instance(self, lambda *_: (404, "no such run")).url], "viewer-token")
        streams.follow("a-run")
        self.assertEqual([violation["rule"] for violation in streams.violations], ["stream.refused"])


@unittest.skipUnless(os.environ.get("ESC_TEST_LONG"), "nine restarts under load: with infra/test --all")
class Rolling(unittest.TestCase):
    def test_nobody_notices_that_every_instance_is_restarted(self):
        words = [sys.executable, str(ROOT / "loadtest" / "rolling"), "--json"]
        done = subprocess.run(words, env={"ESC_PROFILE": "dev", **os.environ}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, f"{done.stdout[-20000:]}\n{done.stderr[-4000:]}")
        figures = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(figures["restarts"], 9, figures)
        self.assertGreater(figures["ended"], 20, figures)
        self.assertGreater(figures["streams"]["opened"], figures["streams"]["runs"], "no stream was ever taken up elsewhere")


if __name__ == "__main__":
    unittest.main()
