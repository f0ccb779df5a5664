"""The stack as its users reach it, while it fails: every request ends in yes, no, or "ask again"."""

import json
import urllib.error
import urllib.request

from local.nats_client import request

# Never by way of a proxy: everything asked here is on loopback.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_SECONDS = 10


class Unknown(Exception):
    """Nobody knows what became of it: it may have been done or not, and may be asked again."""


class Refused(Exception):
    """A final no."""

    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status = status


class Door:
    """HTTP with the tokens of a stack, and events over NATS."""

    def __init__(self, stack):
        self._url = stack.env()["ESC_URL"]
        self._tokens = stack.credentials.tokens
        self._nats = (stack.ports["nats"], "publisher", stack.credentials.nats["publisher"])

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
        asked = urllib.request.Request(self._url + path, data=data, headers=headers, method=method)
        try:
            with _OPENER.open(asked, timeout=_SECONDS) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            if error.code in (408, 425, 429) or error.code >= 500:
                raise Unknown(f"{error.code}: {text}") from error
            raise Refused(error.code, text) from error
        except (OSError, ValueError) as error:
            raise Unknown(str(error)) from error
