"""Drivers that each have one run under way, of a kind and with mishaps that the seed decides."""

import random
import threading
import time
import uuid
from collections import Counter

from .runs import KINDS, Group, RunDriver

# Runs that want one and the same event, which only one may have.
_GROUP = 3


class Load:
    """Keeps so many runs under way until told to stop, then sees them all to their end."""

    def __init__(self, door, world, seed, drivers):
        self._door, self._world, self._seed = door, world, seed
        self._numbers = iter(range(1, 1 << 40))
        self._lock = threading.Lock()
        self._full = threading.Event()
        self._deadline = None
        self._group = None
        self._threads = [threading.Thread(target=self._drive, daemon=True) for _ in range(drivers)]
        self.runs = []

    def start(self):
        for thread in self._threads:
            thread.start()

    def finish(self, seconds):
        """Begin no more runs; wait for the end of those under way, so long at most."""
        self._deadline = time.monotonic() + seconds
        self._full.set()
        for thread in self._threads:
            thread.join(max(0.0, self._deadline + 15 - time.monotonic()))

    def violations(self):
        return [violation for run in self.runs for violation in run.violations]

    def stuck(self):
        """Runs that exist and have not ended."""
        return [run.describe() for run in self.runs if run.run_id and not run.ended]

    def count(self, event_type):
        """How often an event is in the logs of all runs."""
        return sum(run.types[event_type] for run in self.runs)

    def statuses(self):
        """How runs ended, by kind."""
        return dict(sorted(Counter(f"{run.kind} {run.ended}" for run in self.runs if run.ended).items()))

    def _drive(self):
        while not self._full.is_set():
            run = self._next()
            while not run.step():
                if self._deadline is not None and time.monotonic() > self._deadline:
                    return
                time.sleep(0.15)

    def _next(self):
        with self._lock:
            number = next(self._numbers)
            chance = random.Random(f"run/{self._seed}/{number}")
            kind = chance.choice(KINDS)
            group = None
            if kind == "taker":
                if self._group is None or self._group.size == _GROUP:
                    self._group = Group(str(uuid.uuid4()))
                group = self._group
                group.size += 1
            run = RunDriver(self._door, self._world, chance, kind, group)
            self.runs.append(run)
            return run
