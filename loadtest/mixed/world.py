"""The outside world: effects that are counted, so that one that happens twice is seen."""

import json
import random
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class World:
    """`PUT /effects/KEY` does something, `GET /effects/KEY` tells whether it was done."""

    def __init__(self, seed):
        self._chance = random.Random(f"world/{seed}")
        self._lock = threading.Lock()
        self._counts = Counter()
        self._server = None
        self.url = None

    def start(self):
        handler = type("Handler", (_Handler,), {"world": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self):
        if self._server:
            self._server.shutdown()
            self._server.server_close()

    def count(self, key):
        """How often something has happened."""
        with self._lock:
            return self._counts[key]

    def total(self):
        """How much has happened at all."""
        with self._lock:
            return sum(self._counts.values())

    def do(self, key):
        """It happens at once; the answer takes a while, so that whoever asked for it may die in between."""
        with self._lock:
            self._counts[key] += 1
            return self._chance.choice((0.0, 0.05, 0.4))


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_):
        """Whoever asked was killed: that is what this world is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    world = None

    def do_PUT(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        time.sleep(self.world.do(self._key()))
        self._answer({"done": True})

    def do_GET(self):
        self._answer({"done": self.world.count(self._key()) > 0})

    def _key(self):
        return self.path.rsplit("/", 1)[-1]

    def _answer(self, document):
        data = json.dumps(document).encode()
        try:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass  # Whoever asked is gone; what was done stays done.

    def log_message(self, *_):
        pass
