"""The stack as its users reach it, while it fails: every request ends in yes, no, or "ask again"."""

import http.client
import itertools
import json
import threading
import urllib.error
import urllib.request
from collections import Counter

from local.nats_client import request

# Never by way of a proxy: everything asked here is on loopback.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_SECONDS = 10


class Unknown(Exception):
    """Nobody knows what became of it: it may have been done or not, and may be asked again. `kind` names what was in the way."""

    def __init__(self, text, kind="OSError"):
        super().__init__(text)
        self.kind = kind


class Refused(Exception):
    """A final no."""

    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status = status


class Door:
    """HTTP with the tokens of a stack, and events over NATS.

    With several `urls` each request goes to the next of them, and to the others if that one does not answer: what a load
    balancer does. `retries` counts why, `failed` what none of them answered.
    """

    def __init__(self, urls, tokens, nats=None):
        self._urls, self._tokens, self._nats = list(urls), tokens, nats
        self._turns = itertools.count()
        self._lock = threading.Lock()
        self.requests = 0
        self.retries = Counter()
        self.failed = Counter()

    @classmethod
    def of(cls, stack, urls=None):
        """The door of a stack."""
        nats = (stack.ports["nats"], "publisher", stack.credentials.nats["publisher"])
        return cls(urls or [stack.env()["ESC_URL"]], stack.credentials.tokens, nats)

    def get(self, path):
        return self._send("GET", path, None, {}, "operator")

    def post(self, path, body, key):
        """`key` makes repeating it harmless."""
        return self._send("POST", path, body, {"Content-Type": "application/json", "Idempotency-Key": key}, "operator")

    def publish(self, source, event, over_nats):
        """Hand in a CloudEvent; done when it is acknowledged. The same event again is harmless."""
        headers = {"Content-Type": "application/cloudevents+json"}
        if not over_nats:
            return self._send("POST", f"/v1/events?source={source}", event, headers, "publisher")
        subject = f"in.default.{source}.{event['type']}"
        try:
            answer = json.loads(request(*self._nats, subject, json.dumps(event), headers, _SECONDS))
        except (OSError, ValueError) as error:
            raise Unknown(str(error)) from error
        if "stream" not in answer:
            raise Unknown(str(answer))
        return answer

    def _send(self, method, path, body, headers, token):
        headers = {**headers, "Authorization": f"Bearer {self._tokens[token]}"}
        data = None if body is None else json.dumps(body).encode()
        with self._lock:
            self.requests += 1
            first = next(self._turns)
        for place in range(first, first + len(self._urls)):
            url = self._urls[place % len(self._urls)]
            try:
                return self._ask(urllib.request.Request(url + path, data=data, headers=headers, method=method))
            except Unknown as unknown:
                problem = unknown
                with self._lock:
                    self.retries[unknown.kind] += 1
        with self._lock:
            self.failed[f"{method} {_shape(path)}: {problem.kind}"] += 1
        raise problem

    @staticmethod
    def _ask(asked):
        try:
            with _OPENER.open(asked, timeout=_SECONDS) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            if error.code in (408, 425, 429) or error.code >= 500:
                raise Unknown(f"{error.code}: {text}", str(error.code)) from error
            raise Refused(error.code, text) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", None)
            raise Unknown(str(error), type(cause if isinstance(cause, Exception) else error).__name__) from error


def _shape(path):
    """A path without what differs from run to run."""
    words = path.partition("?")[0].split("/")
    return "/".join("{id}" if len(word) == 36 else word for word in words)
