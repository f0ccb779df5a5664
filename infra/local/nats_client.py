"""A request to NATS and its answer, over a connection of its own: for tools that need no more."""

import json
import secrets
import socket


def request(port, user, password, subject, payload, headers=None, seconds=5.0):
    """Send a message and return the answer's text. An OSError if there is none in time, or the server refuses."""
    inbox = f"_INBOX.{secrets.token_hex(8)}"
    head = "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items()) + "\r\n"
    body = head.encode() + payload.encode()
    login = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "user": user, "pass": password}
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection, connection.makefile("rb") as lines:
        lines.readline()
        words = f"CONNECT {json.dumps(login)}\r\nSUB {inbox} 1\r\nHPUB {subject} {inbox} {len(head)} {len(body)}\r\n"
        connection.sendall(words.encode() + body + b"\r\n")
        while line := lines.readline().decode():
            word, *rest = line.split()
            if word == "PING":
                connection.sendall(b"PONG\r\n")
            elif word == "-ERR":
                raise OSError(f"NATS: {line.strip()}")
            elif word == "MSG":
                return lines.read(int(rest[-1])).decode()
            elif word == "HMSG":
                # Only the server itself answers with headers here: there is nobody who takes it.
                raise OSError(f"NATS: {lines.read(int(rest[-1])).decode(errors='replace').strip()}")
    raise OSError("NATS closed the connection")
