"""Mishaps at the worst moments."""

import threading
import time

from local import say

from .api import Refused

# Long enough for the play to see that the moment has come, short enough not to bore.
_MOMENT = 4000


class NoChaos:
    """Nothing goes wrong."""

    def run_began(self, api, run):
        """The run exists."""

    def before_approval(self, api, run, approval):
        """The person is about to decide."""

    def approve(self, api, run, path, body):
        """The person decides."""
        api.post(path, body)

    def finish(self):
        """The play is over; returns what did not go wrong although it should have."""
        return []


class Chaos(NoChaos):
    """Three services die by SIGKILL, each at its worst moment, and are started again."""

    def __init__(self, stack, forge):
        self._stack = stack
        self._forge = forge
        self._killed = []

    def run_began(self, api, run):
        # A delta means that a model call is under way.
        api.on_event(run, "delta", lambda: self._kill("planner", "in the middle of a model call"))

    def before_approval(self, api, run, approval):
        self._forge.hold_next_answer(_MOMENT)
        threading.Thread(target=self._kill_executor_after_merge, daemon=True).start()
        # This instance stops for a moment between its commit and its publishing.
        self._stack.restart("approval", env={"FAILPOINTS": f"engine.after_commit=1*sleep({_MOMENT})"})

    def approve(self, api, run, path, body):
        def decide():
            try:
                api.post(path, body)
            except (OSError, Refused):
                pass  # The one that would have answered is dead by then; the log has the decision.

        threading.Thread(target=decide, daemon=True).start()
        deadline = time.monotonic() + 20
        while not any(event["type"] == "approval.granted" for event in api.events(run)):
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)
        self._kill("approval", "between the commit of the decision and its publishing")

    def finish(self):
        wanted = {"planner", "tool-executor", "approval"}
        return [f"{name} was never killed" for name in sorted(wanted - set(self._killed))]

    def _kill_executor_after_merge(self):
        before = self._forge.stats()["merges"]
        deadline = time.monotonic() + 60
        while self._forge.stats()["merges"] == before:
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        self._kill("tool-executor", "after the merge was sent, before it was recorded")

    def _kill(self, name, when):
        self._stack.kill(name)
        self._killed.append(name)
        say(f"  ✗ SIGKILL: {name}, {when}")
        self._stack.spawn(name)
