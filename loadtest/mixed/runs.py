"""One run: what is done to it while it lives, and what must be true of it in the end."""

import heapq
import threading
import time
import uuid
from collections import Counter

from .door import Refused, Unknown

KINDS = ("stepper", "stepper", "merger", "merger", "pusher", "builder", "sleeper", "taker")

_ENDS = {"run.completed": "completed", "run.failed": "failed", "run.cancelled": "cancelled"}
# How soon what nobody knows the outcome of is tried again.
_AGAIN = 0.3


class Group:
    """Runs that want an event each, of the same name."""

    def __init__(self, name):
        self.name, self.size = name, 0


class RunDriver:
    """Starts a run, plays the outside world and the person, and looks at the log. Call `step` until it says that it is done."""

    def __init__(self, door, world, chance, kind, group):
        self._door, self._world, self._chance, self._group = door, world, chance, group
        self.kind = kind
        self.run_id = None
        self.ended = None
        self.violations = []
        self._key = str(uuid.uuid4())
        self.seen = 0
        self.types = Counter()
        self._todo = []
        # What the log must show, since it was acknowledged.
        self._said = {}
        self._verdicts = {}
        self._effects = {}
        self._held = False
        self._resume_at = None
        self._last = None

    def step(self):
        """One look and whatever is due. Whether there is nothing more to do."""
        if self.run_id is None:
            return self._create()
        self._act()
        try:
            self._read()
        except Unknown:
            return False
        except Refused as refused:
            self._violation("acknowledged.lost", f"the run was acknowledged, and then: {refused}")
            return True
        if not self.ended or (self._group and self._todo):
            # The others of its group still need the event that it hands in.
            return False
        self._judge()
        return True

    def describe(self):
        """For who has to find out why it is stuck."""
        return {"run_id": self.run_id, "kind": self.kind, "seq": self.seen, "last": self._last}

    # Beginning.

    def _create(self):
        objective = f"take of {self._group.name}" if self._group else f"be a {self.kind}"
        try:
            answer = self._door.post("/v1/runs", {"agent": self.kind, "input": objective}, self._key)
        except Unknown:
            return False
        except Refused as refused:
            self._violation("refused", f"a run can't be created: {refused}")
            return True
        self.run_id = answer["run_id"]
        self._plan()
        return False

    def _plan(self):
        chance = self._chance
        if self.kind in ("merger", "sleeper"):
            event = self._event("ci.passed", self.run_id, {"number": f"{self.run_id}-number", "ok": True})
            self._publish("ci", event, chance.choice((0, chance.uniform(0, 0.3), chance.uniform(0, 3))))
            noise = self._event("ci.passed", self.run_id, {"number": "no", "ok": False})
            if self.kind == "merger" and chance.random() < 0.5:
                self._publish("ci", noise, chance.uniform(0, 0.5))
        if self._group:
            self._publish("slots", self._event("slot.free", self._group.name, {}), chance.uniform(0, 2))
        if chance.random() < 0.25:
            self._say(chance.uniform(0, 3))
        if chance.random() < 0.2:
            begin = chance.uniform(0, 3)
            self._later(begin, self._pause)
            self._resume_at = time.monotonic() + begin + chance.uniform(0.5, 4)
        if chance.random() < 0.12:
            self._later(chance.uniform(0, 5), self._once(f"/v1/runs/{self.run_id}/cancel", {"reason": "enough"}))

    @staticmethod
    def _event(event_type, subject, data):
        return {
            "specversion": "1.0",
            "id": str(uuid.uuid4()),
            "source": "https://world.test",
            "type": event_type,
            "subject": subject,
            "data": data,
        }

    def _publish(self, source, event, delay):
        over_nats = self._chance.random() < 0.5
        self._later(delay, lambda: self._door.publish(source, event, over_nats))
        if self._chance.random() < 0.3:
            # The outside world repeats itself, and not always in the same way.
            self._later(delay + self._chance.uniform(0, 2), lambda: self._door.publish(source, event, not over_nats))

    def _say(self, delay):
        text, key = f"Go on, says {uuid.uuid4()}.", str(uuid.uuid4())

        def say():
            self._door.post(f"/v1/runs/{self.run_id}/messages", {"text": text}, key)
            # The log may have shown it already, if the first answer was lost.
            self._said.setdefault(text, 0)

        self._later(delay, say)

    def _pause(self):
        self._door.post(f"/v1/runs/{self.run_id}/pause", {}, f"{self._key}/pause")

    def _once(self, path, body):
        key = str(uuid.uuid4())
        return lambda: self._door.post(path, body, key)

    # In between.

    def _later(self, delay, action):
        heapq.heappush(self._todo, (time.monotonic() + delay, uuid.uuid4(), action))

    def _act(self):
        while self._todo and self._todo[0][0] <= time.monotonic():
            action = heapq.heappop(self._todo)[2]
            try:
                action()
            except Unknown:
                self._later(_AGAIN, action)
                return
            except Refused:
                pass  # The run has ended, or the question was answered.
        if self._held and self._resume_at is not None and time.monotonic() >= self._resume_at:
            # A pause that was given up as lost may come true later: as long as the log says so, it is resumed.
            self._resume_at = time.monotonic() + 1
            self._later(0, self._once(f"/v1/runs/{self.run_id}/resume", {}))

    def _read(self):
        while True:
            page = self._door.get(f"/v1/runs/{self.run_id}/events?after={self.seen}&limit=500")["items"]
            for event in page:
                self._see(event)
            if len(page) < 500:
                return

    def _see(self, event):
        kind, data = event["type"], event["data"]
        if event["seq"] != self.seen + 1:
            self._violation("log.gap", f"event {event['seq']} came after {self.seen}")
        self.seen, self._last = event["seq"], kind
        self.types[kind] += 1
        self.ended = self.ended or _ENDS.get(kind)
        if kind == "approval.requested":
            self._answer(data["approval"]["approval_id"])
        elif kind in ("approval.granted", "approval.denied"):
            self._verdicts.setdefault(data["approval_id"], []).append(kind)
        elif kind == "run.paused":
            self._held = True
            self._resume_at = self._resume_at or time.monotonic() + 1
        elif kind == "run.resumed":
            self._held = False
        elif kind == "message.added" and data["role"] == "operator":
            text = data["block"]["text"]
            self._said[text] = self._said.get(text, 0) + 1
        elif kind == "tool.requested" and data["call"]["tool"].startswith("world."):
            call = data["call"]
            self._effects[call["call_id"]] = [call["tool"], call["arguments"]["key"], None]
        elif kind in ("tool.completed", "tool.denied", "tool.cancelled") and data["call_id"] in self._effects:
            self._effects[data["call_id"]][2] = kind if kind != "tool.cancelled" or data["started"] else "tool.denied"

    def _answer(self, approval):
        """The person, in one of several moods."""
        chance = self._chance
        mood = chance.choice(("yes", "yes", "yes twice", "yes then no", "no", "both at once"))
        delay = chance.uniform(0, 1.5)
        if mood == "both at once":
            self._later(delay, lambda: self._at_once(approval))
        else:
            self._later(delay, self._decide(approval, "deny" if mood == "no" else "approve"))
        if mood == "yes twice":
            self._later(delay + chance.uniform(0, 0.5), self._decide(approval, "approve"))
        if mood == "yes then no":
            self._later(delay + chance.uniform(0, 0.5), self._decide(approval, "deny"))

    def _at_once(self, approval):
        for verdict in ("approve", "deny"):
            action = self._decide(approval, verdict)
            threading.Thread(target=self._quietly, args=(action,), daemon=True).start()
        # Whichever came through, if any did: one more that must be a repetition or an answer.
        self._later(1.0, self._decide(approval, "approve"))

    @staticmethod
    def _quietly(action):
        try:
            action()
        except (Unknown, Refused):
            pass

    def _decide(self, approval, verdict):
        key = str(uuid.uuid4())

        def decide():
            answer = self._door.post(f"/v1/approvals/{approval}", {"decision": verdict}, key)
            wanted = {"approve": "granted", "deny": "denied"}[verdict]
            if answer["state"] != wanted:
                self._violation("acknowledged.lost", f"`{verdict}` was acknowledged, and the answer says {answer['state']}")

        return decide

    # In the end.

    def _judge(self):
        for text, count in self._said.items():
            if count != 1:
                self._violation("acknowledged.lost", f"an acknowledged message is {count} times in the log: {text}")
        for approval, verdicts in self._verdicts.items():
            if len(verdicts) > 1:
                self._violation("approval.twice", f"approval {approval} was decided as {verdicts}")
        for tool, key, end in self._effects.values():
            count = self._world.count(key)
            if count > 1 and tool != "world.set" and tool != "world.look":
                self._violation("effect.doubled", f"`{tool}` happened {count} times for {key}")
            if count == 0 and end == "tool.completed" and tool != "world.look":
                self._violation("effect.missing", f"`{tool}` is said to have happened for {key}")
            if count > 0 and end == "tool.denied" and tool != "world.look":
                self._violation("effect.denied", f"`{tool}` happened for {key} although it never started")

    def _violation(self, rule, detail):
        self.violations.append({"run_id": self.run_id, "rule": rule, "detail": detail})
