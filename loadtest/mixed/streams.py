"""Who follows runs over server-sent events, from one instance to the next."""

import http.client
import itertools
import threading
import time
import urllib.error
import urllib.request

# Never by way of a proxy: everything asked here is on loopback.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# Longer than the pause between heartbeats.
_SILENCE = 40
_ENDS = ("run.completed", "run.failed", "run.cancelled")


class Streams:
    """Follows every run of a load to its end. A stream that ends before is taken up at the next instance by the last event's
    number: each event must come once, in order."""

    def __init__(self, urls, token):
        self._urls, self._token = list(urls), token
        self._turns = itertools.count()
        self._lock = threading.Lock()
        self._threads = {}
        self._over = threading.Event()
        self._gatherer = None
        self._last = {}
        self.violations = []
        self.opened = 0

    def start(self, load):
        """Follow what runs there are, and each that comes."""
        self._gatherer = threading.Thread(target=self._gather, args=(load,), daemon=True)
        self._gatherer.start()

    def finish(self, load, seconds):
        """Wait for the end of all streams, whose runs have ended; so long at most."""
        deadline = time.monotonic() + seconds
        while any(run.run_id and run.run_id not in self._threads for run in load.runs) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._over.set()
        for run_id, thread in list(self._threads.items()):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._violation(run_id, "stream.stuck", f"the stream still waits behind event {self._last.get(run_id)}")

    @property
    def runs(self):
        """How many runs were followed."""
        return len(self._threads)

    @property
    def events(self):
        """How many events have come."""
        return sum(self._last.values())

    def _gather(self, load):
        while not self._over.wait(0.05):
            for run in load.runs:
                if run.run_id and run.run_id not in self._threads:
                    thread = threading.Thread(target=self.follow, args=(run.run_id,), daemon=True)
                    self._threads[run.run_id] = thread
                    thread.start()

    def follow(self, run):
        """Follow a run to its end."""
        self._last[run] = 0
        ended = False
        while not ended:
            url = self._urls[next(self._turns) % len(self._urls)]
            headers = {
                "Authorization": f"Bearer {self._token}",
                "Accept": "text/event-stream",
                "Last-Event-ID": str(self._last[run]),
            }
            asked = urllib.request.Request(f"{url}/v1/runs/{run}/stream", headers=headers)
            try:
                with _OPENER.open(asked, timeout=_SILENCE) as answer:
                    with self._lock:
                        self.opened += 1
                    # The end was heard, and nothing will follow.
                    ended = answer.status == 204
                    for kind, number in _events(answer):
                        self._see(run, number)
                        ended = ended or kind in _ENDS
            except urllib.error.HTTPError as error:
                if error.code < 500 and error.code != 429:
                    return self._violation(run, "stream.refused", str(error))
            except (OSError, http.client.HTTPException):
                pass
            if not ended:
                time.sleep(0.02)

    def _see(self, run, number):
        last = self._last[run]
        if number != last + 1:
            rule = "stream.repeat" if number <= last else "stream.gap"
            self._violation(run, rule, f"event {number} came after {last}")
        self._last[run] = max(last, number)

    def _violation(self, run, rule, detail):
        with self._lock:
            self.violations.append({"run_id": run, "rule": rule, "detail": detail})


def _events(answer):
    """Type and number of the committed events of a stream; what has no number is none."""
    kind = number = None
    for line in answer:
        if not line.endswith(b"\n"):
            return  # Cut in the middle: what it belongs to comes again.
        name, _, value = line.decode().rstrip("\r\n").partition(":")
        if name == "event":
            kind = value.strip()
        elif name == "id":
            number = int(value)
        elif not name and not value:
            # An empty line ends an event; the snapshot's id says where the stream begins.
            if number is not None and kind != "snapshot":
                yield kind, number
            kind = number = None
