"""The outside: AgentDojo's functions over HTTP, each case in an environment of its own."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# A call may come before we have heard the id of its run.
_SECONDS = 30.0


class World:
    """`POST /FUNCTION` with the arguments calls it. Whose call it is follows from its trace, which is its run's."""

    def __init__(self, suites, cases):
        from agentdojo.functions_runtime import FunctionsRuntime

        self._runtimes = {name: FunctionsRuntime(suite.tools) for name, suite in suites.items()}
        self._cases = {case.name: (case, case.environment.model_copy(deep=True), threading.Lock()) for case in cases}
        self._known = threading.Condition()
        # The name of the case, by the id of a run.
        self._runs = {}
        self._server = None
        self.url = None
        # What was carried out, by the ids of the calls.
        self.done = set()

    def start(self):
        handler = type("Handler", (_Handler,), {"world": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self):
        if self._server:
            self._server.shutdown()
            self._server.server_close()

    def expect(self, run, case):
        """The calls of this run belong to this case."""
        with self._known:
            self._runs[run.replace("-", "")] = case.name
            self._known.notify_all()

    def call(self, function, arguments, call_id, run):
        """Status and JSON."""
        with self._known:
            self._known.wait_for(lambda: run in self._runs, _SECONDS)
            name = self._runs.get(run)
            # What nobody asked for is counted too.
            self.done.add(call_id)
        if name is None:
            return 404, {"error": "no such case"}
        case, environment, lock = self._cases[name]
        with lock:
            result, error = self._runtimes[case.suite].run_function(environment, function, arguments)
        return (422, {"error": error}) if error else (200, _plain(result))


def _plain(value):
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    world = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        call_id = self.headers.get("Idempotency-Key")
        # 00-<trace>-<span>-<flags>
        trace = (self.headers.get("traceparent") or "--").split("-")[1]
        status, answer = self.world.call(self.path.strip("/"), json.loads(body or b"{}"), call_id, trace)
        content = json.dumps(answer, default=str).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """The world keeps its own record."""
