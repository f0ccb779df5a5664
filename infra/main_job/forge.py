"""Starting and asking the stand-in forge."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request


class Forge:
    """The stand-in code host of `infra/forge`, on a free port."""

    def __init__(self, root, state):
        self._program = root / "infra" / "forge" / "forge.py"
        self._log = state / "log" / "forge.log"
        self._process = None
        self.url = None

    def start(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log, "ab") as log:
            words = [sys.executable, str(self._program), "--port", str(port)]
            self._process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                self.stats()
                return
            except OSError:
                time.sleep(0.02)
        raise OSError(f"the stand-in forge does not answer: see {self._log}")

    def stop(self):
        if self._process:
            os.kill(self._process.pid, signal.SIGTERM)
            self._process.wait(10)

    def stats(self):
        with urllib.request.urlopen(f"{self.url}/stats", timeout=5) as answer:
            return json.load(answer)

    def hold_next_answer(self, milliseconds):
        """The next merge takes effect at once, but its answer comes only after this time."""
        body = json.dumps({"hold_ms": milliseconds}).encode()
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/control", data=body, headers=headers), timeout=5).close()
