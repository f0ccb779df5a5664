"""Names and ports: the one place they come from."""

import os
import random
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Dict

from .problem import Problem

PARTS = ("postgres", "nats", "valkey")
SERVICES = ("ingress", "planner", "tool-executor", "observer", "scheduler", "approval", "artifact")
DATABASE = "escapement"
OWNER = "esc_owner"

_NAMED = {
    "ingress": ("ESC_API_PORT", 8080),
    "nats": ("ESC_NATS_PORT", 14222),
    "postgres": ("ESC_POSTGRES_PORT", 15432),
    "valkey": ("ESC_REDIS_PORT", 16379),
}
_BASE = ("ESC_PORT_BASE", 8081)


def role(service):
    """The Postgres role of a service."""
    return "esc_" + service.replace("-", "_")


def variable(name):
    """The variable that moves this part's or service's port."""
    return _NAMED.get(name, _BASE)[0]


@dataclass(frozen=True)
class Ports:
    """A loopback port for each part and service; `ports["nats"]`."""

    numbers: Dict[str, int]

    def __getitem__(self, name):
        return self.numbers[name]

    @classmethod
    def from_env(cls, environ=os.environ):
        """The defaults, moved by `ESC_API_PORT`, `ESC_NATS_PORT`, `ESC_POSTGRES_PORT`, `ESC_REDIS_PORT` and, for the
        services behind the API, `ESC_PORT_BASE` and the ports after it."""
        numbers = {name: _number(environ, *where) for name, where in _NAMED.items()}
        base = _number(environ, *_BASE)
        numbers.update((name, base + place) for place, name in enumerate(SERVICES[1:]))
        owners = {}
        for name, port in numbers.items():
            if port in owners:
                change = f"change {variable(owners[port])} or {variable(name)}"
                raise Problem(f"Port {port} is given to both {owners[port]} and {name}: {change}.")
            owners[port] = name
        return cls(numbers)

    @classmethod
    def free(cls):
        """Ports that nobody holds at the moment, for a stack that must not meet another. They are below those that systems
        give to whoever asks for any (from 32768 on Linux), so that nobody is given one before the stack has it."""
        free = (port for port in random.sample(range(10_000, 23_000), 13_000) if is_free(port))
        return cls(dict(zip(PARTS + SERVICES, free)))


def _number(environ, name, default):
    text = environ.get(name) or str(default)
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise Problem(f"{name} is {text!r}: it must be a port number from 1 to 65535.")
    return int(text)


def check_free(name, port):
    """Raise a Problem that names the port, its holder and the variable to change, if somebody listens there."""
    if not is_free(port):
        by = holder(port)
        who = f" by {by}" if by else ""
        raise Problem(f"Port {port}, meant for {name}, is in use{who}: stop that, or set {variable(name)}.")


def is_free(port):
    """Whether nobody listens on a port."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
        return True
    except OSError:
        return False


def holder(port):
    """Who listens on a port, as `name (pid n)`; None where the system doesn't tell."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in _lines(table)[1:]:
            fields = row.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for link in Path("/proc").glob("[0-9]*/fd/*") if inodes else ():
        try:
            if os.readlink(link) in inodes:
                pid = link.parts[2]
                return f"{''.join(_lines(f'/proc/{pid}/comm'))} (pid {pid})"
        except OSError:  # gone meanwhile, or not ours to see
            continue
    return None


def _lines(path):
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
