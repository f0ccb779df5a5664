"""Just enough of the NATS and Redis protocols to see what a server lets a client do."""

import json
import socket
import threading


class NatsClient:
    """One connection as one user."""

    def __init__(self, port, user=None, password=None):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._lines = self._socket.makefile("rb")
        self._lines.readline()
        self._inbox = 0
        self._send(
            "CONNECT "
            + json.dumps({"verbose": False, "pedantic": False, "user": user, "pass": password, "headers": True})
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._lines.close()
        self._socket.close()

    def may_publish(self, subject):
        """Whether the server takes a message on this subject."""
        self._send(f"PUB {subject} 0\r\n")
        return self._allowed()

    def may_subscribe(self, subject):
        """Whether the server takes a subscription to this subject."""
        self._inbox += 1
        self._send(f"SUB {subject} {self._inbox}")
        return self._allowed()

    def request(self, subject, body, inbox="_INBOX.1"):
        """The reply to a request, both in JSON; `reply_to` then holds where an answer to the reply would go."""
        payload = json.dumps(body)
        self._send(f"SUB {inbox} r\r\nPUB {subject} {inbox} {len(payload)}\r\n{payload}")
        return self._next_message()

    def answer_next(self, body):
        """Answer the next request from another thread."""

        def answer():
            self._next_message()
            payload = json.dumps(body)
            self._send(f"PUB {self.reply_to} {len(payload)}\r\n{payload}")

        threading.Thread(target=answer).start()

    def _next_message(self):
        while True:
            line = self._lines.readline().decode()
            if line.startswith("-ERR"):
                raise PermissionError(line)
            if line.startswith("MSG"):
                words = line.split()
                self.reply_to = words[3] if len(words) == 5 else None
                return json.loads(self._lines.read(int(words[-1])))

    def _allowed(self):
        self._send("PING")
        allowed = True
        while True:
            line = self._lines.readline()
            if line.startswith(b"PONG"):
                return allowed
            if line.startswith(b"-ERR"):
                allowed = False
            if not line:
                raise ConnectionError("the server closed the connection")

    def _send(self, text):
        self._socket.sendall(text.encode() + b"\r\n")


def redis_says(port, *commands):
    """The first line of the answer to each inline command."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection, connection.makefile("rb") as lines:
        answers = []
        for words in commands:
            connection.sendall(words.encode() + b"\r\n")
            answers.append(lines.readline().decode().strip())
        return answers
