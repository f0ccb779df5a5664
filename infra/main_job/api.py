"""The public HTTP API, as far as the play needs it."""

import json
import threading
import urllib.error
import urllib.request


class Api:
    """Requests with the operator's token."""

    def __init__(self, env):
        self.url = env["ESC_URL"]
        self._headers = {"Authorization": f"Bearer {env['ESC_TOKEN']}", "Content-Type": "application/json"}

    def get(self, path):
        return self._send(urllib.request.Request(self.url + path, headers=self._headers))

    def post(self, path, body):
        data = json.dumps(body).encode()
        return self._send(urllib.request.Request(self.url + path, data=data, headers=self._headers, method="POST"))

    def runs(self, agent):
        return self.get(f"/v1/runs?agent={agent}&limit=5")["items"]

    def run(self, run):
        return self.get(f"/v1/runs/{run}")

    def events(self, run, after=0):
        """Committed events after a seq, page by page."""
        while True:
            page = self.get(f"/v1/runs/{run}/events?after={after}&limit=500")["items"]
            if not page:
                return
            yield from page
            after = page[-1]["seq"]

    def open_approvals(self):
        return self.get("/v1/approvals?state=open")["items"]

    def on_event(self, run, name, call):
        """Call `call` once, in the background, when the stream of a run shows the SSE event `name`."""
        headers = {**self._headers, "Accept": "text/event-stream"}
        request = urllib.request.Request(f"{self.url}/v1/runs/{run}/stream", headers=headers)

        def listen():
            with urllib.request.urlopen(request, timeout=120) as stream:
                for line in stream:
                    if line.strip() == f"event: {name}".encode():
                        call()
                        return

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        return thread

    @staticmethod
    def _send(request):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise Refused(error.code, error.read().decode(errors="replace")) from error


class Refused(Exception):
    """The API said no."""

    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status = status
