#!/usr/bin/env python3
"""A stand-in code host that counts what it receives. See README.md beside this file."""

import argparse
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PULL = re.compile(r"^/repos/([\w.-]+)/([\w.-]+)/pulls/(\d+)(/merge)?$")
MAX_BODY = 1 << 20


class Forge:
    """Pull requests and counters; every pull request that is asked for exists."""

    def __init__(self):
        self.lock = threading.Lock()
        self.merges = {}
        self.answers = {}
        self.stats = {"merge_requests": 0, "merges": 0, "repeated_keys": 0, "refused": 0, "reads": 0}
        self.hold_ms = 0

    def merge(self, pull, key, body):
        """Merges once; returns (status, answer, milliseconds to hold the answer)."""
        with self.lock:
            self.stats["merge_requests"] += 1
            if key and key in self.answers:
                self.stats["repeated_keys"] += 1
                return 200, self.answers[key], 0
            if pull in self.merges:
                self.stats["refused"] += 1
                return 405, {"message": "Pull Request is not mergeable: it is merged already"}, 0
            sha = str(body.get("sha") or "0" * 40)
            answer = {"merged": True, "sha": sha, "message": "Pull Request successfully merged"}
            self.merges[pull] = {"sha": sha, "at": time.time(), "title": body.get("commit_title")}
            self.stats["merges"] += 1
            if key:
                self.answers[key] = answer
            hold, self.hold_ms = self.hold_ms, 0
            return 200, answer, hold

    def pull(self, pull):
        with self.lock:
            self.stats["reads"] += 1
            merged = self.merges.get(pull)
        owner, repository, number = pull
        return {
            "number": number,
            "state": "closed" if merged else "open",
            "merged": bool(merged),
            "merge_commit_sha": merged and merged["sha"],
            "base": {"repo": {"full_name": f"{owner}/{repository}"}, "ref": "main"},
        }


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    forge = Forge()

    def do_GET(self):
        if self.path == "/stats":
            with self.forge.lock:
                return self.answer(200, self.forge.stats)
        match = PULL.match(self.path)
        if not match:
            return self.answer(404, {"message": "Not Found"})
        pull = self.forge.pull((match[1], match[2], int(match[3])))
        return self.answer(200, {"merged": pull["merged"], "sha": pull["merge_commit_sha"]} if match[4] else pull)

    def do_PUT(self):
        match = PULL.match(self.path)
        body = self.body()
        if not match or not match[4] or body is None:
            return self.answer(404 if body is not None else 400, {"message": "Not Found"})
        pull = (match[1], match[2], int(match[3]))
        status, answer, hold = self.forge.merge(pull, self.headers.get("Idempotency-Key"), body)
        if hold:
            time.sleep(hold / 1000)
        return self.answer(status, answer)

    def do_POST(self):
        body = self.body()
        if self.path != "/control" or body is None:
            return self.answer(404, {"message": "Not Found"})
        with self.forge.lock:
            self.forge.hold_ms = int(body.get("hold_ms", 0))
        return self.answer(200, {"hold_ms": self.forge.hold_ms})

    def body(self):
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY:
            return None
        try:
            body = json.loads(self.rfile.read(length) or b"{}")
        except ValueError:
            return None
        return body if isinstance(body, dict) else None

    def answer(self, status, document):
        data = json.dumps(document).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # Whoever asked is gone; what was done stays done.

    def log_message(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8090)
    server = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler)
    print(f"forge on http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
