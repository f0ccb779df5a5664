"""A server outside that counts: each effect by the key that came with it, however often it is asked for."""

import json
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        # Whoever asked was killed in the middle of its request: that is what the drill is about.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Counter:
    """`POST /effect` has an effect that a second time would double; `GET /effect/KEY` says whether it has happened."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._effects = {}
        self._asked = {}
        counter = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                counter._effect(self.headers["Idempotency-Key"])
                self._answer({"ok": True})

            def do_GET(self):
                times = counter.effects(self.path.rpartition("/")[2])
                self._answer({"done": times > 0, "times": times})

            def _answer(self, body):
                data = json.dumps(body).encode()
                try:
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # Whoever asked was killed meanwhile.

            def log_message(self, *words):
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def effects(self, key):
        """How often the effect with this key has happened."""
        with self._lock:
            return self._effects.get(key, 0)

    def asked(self, key):
        """How often it was asked for."""
        with self._lock:
            return self._asked.get(key, 0)

    def stop(self):
        """Answers nobody any more."""
        self._server.shutdown()

    def _effect(self, key):
        # The request is on its way, and then its answer: in both somebody may die.
        with self._lock:
            before, after = self._random.uniform(0, 0.15), self._random.uniform(0, 0.15)
            self._asked[key] = self._asked.get(key, 0) + 1
        time.sleep(before)
        with self._lock:
            # It counts, and does not look whether it has done so before: the caller has to.
            self._effects[key] = self._effects.get(key, 0) + 1
        time.sleep(after)
