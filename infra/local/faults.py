"""Faults: what can break in a stack, a plan of it that a seed gives, and its execution."""

import json
import random
import signal
import socket
import threading
import time
from collections import Counter

from .nats_client import request
from .problem import Problem
from .proxy import Proxies
from .settings import PARTS, SERVICES
from .stack import Stack

# What a service is told, and the part that it names.
_REACHED = {"ESC_NATS_URL": "nats", "ESC_DATABASE_URL": "postgres", "ESC_REDIS_URL": "valkey"}


class ProxiedStack(Stack):
    """A stack whose services reach the parts through proxies. Everybody else reaches them directly."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.proxies = Proxies({name: self.ports[name] for name in PARTS})

    def start_parts(self):
        super().start_parts()
        self.proxies.start()

    def stop(self):
        super().stop()
        self.proxies.stop()

    def _told(self, service):
        told = super()._told(service)
        for key, part in _REACHED.items():
            told[key] = told[key].replace(f":{self.ports[part]}", f":{self.proxies.ports[part]}")
        return told


def plan(seed, seconds):
    """What goes wrong and when: `(second, kind, subject, how)`, the same for the same seed and length.

    Every kind comes up once in random order, as far as there is time; then whatever chance says."""
    chance = random.Random(f"faults/{seed}")
    kinds = [("kill", name) for name in SERVICES]
    kinds += [("restart", name) for name in PARTS] + [("cut", name) for name in PARTS]
    kinds += [("flush", "valkey"), ("delete", "EVENTS")]
    first = chance.sample(kinds, len(kinds))
    at, faults = chance.uniform(1, 2), []
    while at < seconds:
        kind, subject = first.pop() if first else chance.choice(kinds)
        how = {"down": round(chance.uniform(0, 2), 2), "hard": chance.random() < 0.5}
        how["share"], how["seed"] = round(chance.choice((0.3, 0.7, 1.0)), 1), chance.randrange(1 << 30)
        faults.append((round(at, 2), kind, subject, how))
        at += chance.uniform(0.3, 3.5)
    return faults


class Faults:
    """Carries out a plan, and starts again what has died."""

    def __init__(self, stack, faults):
        self._stack, self._plan = stack, faults
        self._locks = {name: threading.Lock() for name in (*PARTS, *SERVICES)}
        self._over = threading.Event()
        self._threads = []
        self.counts = Counter()
        # Services that ended although nobody killed them.
        self.gave_up = Counter()
        self.problems = []

    def run(self):
        """Carry the plan out from now on, to its end; then everything runs again."""
        keeper = threading.Thread(target=self._keep_services, daemon=True)
        keeper.start()
        began = time.monotonic()
        for at, kind, subject, how in self._plan:
            time.sleep(max(0.0, began + at - time.monotonic()))
            thread = threading.Thread(target=self._carry_out, args=(kind, subject, how), daemon=True)
            thread.start()
            self._threads.append(thread)
        for thread in self._threads:
            thread.join(180)

    def end(self):
        """Stop looking after the services."""
        self._over.set()

    def _carry_out(self, kind, subject, how):
        try:
            getattr(self, "_" + kind)(subject, how)
            self.counts[f"{kind} {subject}"] += 1
        except (OSError, Problem) as error:
            # A fault that meets another: the flush of a server that is just down.
            self.counts[f"{kind} {subject}, in vain"] += 1
            if kind == "restart":
                self.problems.append(f"{kind} {subject}: {error}")

    def _kill(self, name, how):
        with self._locks[name]:
            self._stack.kill(name)
            time.sleep(how["down"])
            self._stack.spawn(name, wait=False)

    def _restart(self, name, how):
        part = next(part for part in self._stack.parts if part.name == name)
        with self._locks[name]:
            if how["hard"]:
                # Postgres alone has children to take along: an immediate stop is its way of being killed.
                part.process.stop(signal.SIGQUIT if name == "postgres" else signal.SIGKILL)
            else:
                part.stop()
            time.sleep(how["down"])
            part.launch()
            part.wait()

    def _cut(self, name, how):
        self._stack.proxies.cut(name, how["share"], how["seed"])

    def _flush(self, name, _how):
        password = self._stack.credentials.valkey
        with socket.create_connection(("127.0.0.1", self._stack.ports[name]), timeout=5) as connection:
            connection.sendall(f"AUTH {password}\r\nFLUSHALL\r\n".encode())
            with connection.makefile("rb") as lines:
                if [lines.readline()[:1], lines.readline()[:1]] != [b"+", b"+"]:
                    raise OSError("Valkey did not flush")

    def _delete(self, stream, _how):
        credentials = self._stack.credentials
        subject = f"$JS.API.STREAM.DELETE.{stream}"
        answer = json.loads(request(self._stack.ports["nats"], "operator", credentials.nats["operator"], subject, ""))
        if not answer.get("success"):
            raise OSError(f"NATS did not delete {stream}: {answer}")

    def _keep_services(self):
        """What an init system does: a service that has ended is started again."""
        while not self._over.wait(0.2):
            for name in SERVICES:
                if not self._locks[name].acquire(blocking=False):
                    continue
                try:
                    if self._stack.services[name].process.pid is None:
                        self.gave_up[name] += 1
                        self._stack.spawn(name, wait=False)
                except (OSError, Problem) as error:
                    self.problems.append(f"{name} could not be started again: {error}")
                finally:
                    self._locks[name].release()
