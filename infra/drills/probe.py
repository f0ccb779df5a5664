"""The executor is killed at random points around effects that may not be repeated, again and again. Then: no effect twice,
none lost, and what nobody could know was asked about or is told as unknown."""

import json
import random
import shutil
import tempfile
import time
from pathlib import Path

from local import Ports, Stack, say
from main_job.api import Api

from .counter import Counter

# Effects under way around each kill.
RUNS_PER_KILL = 3
# A call in doubt that has not happened is believed so a few seconds after its time-out, then done again.
PATIENCE = 120
_ENDS = ("completed", "failed", "cancelled")

_TOOL = """\
name: drill.{name}
description: Counts one more. For the drill.
effect: external
idempotent: false
timeout: 1s
input:
  type: object
  required: [number]
  additionalProperties: false
  properties:
    number: {{ type: integer, description: "Which one" }}
run:
  http: {{ method: POST, url: "{url}/effect", allow_private: true }}
{probe}"""

_PROBE = """\
probe:
  http: {{ method: GET, url: "{url}/effect/{{idempotency_key}}", allow_private: true }}
  done: /done
"""

_AGENT = """\
name: drill-{name}
model: scripted:drill-{name}
instructions: Count.
tools: [drill.{name}]
"""

_SCENARIO = """\
name: drill-{name}
description: Has one effect, then ends.
steps:
  - name: effect
    when: {{turn: 1}}
    calls:
      - tool: drill.{name}
        arguments: {{number: 1}}
  - name: end
    when: {{turn: "2.."}}
    calls:
      - tool: complete
        arguments: {{summary: "Counted, or told that nobody knows."}}
"""


class ProbeDrill:
    """One drill, on a stack of its own."""

    def __init__(self, root, kills, seed):
        self._root, self._kills, self._seed = root, kills, seed
        self._random = random.Random(seed)

    def play(self):
        """Plays it and returns what came of it; `problems` is empty if all is well."""
        state = Path(tempfile.mkdtemp(prefix="escapement-drill-"))
        state.chmod(0o755)
        stack = Stack(self._root, Ports.free(), state)
        counter = Counter(self._seed)
        try:
            self._write_agents(state / "agents", counter.url)
            stack.start_parts()
            stack.migrate()
            # Leases and looks are short, so that what a kill leaves behind is found soon.
            stack.start_services(
                env={
                    "ESC_AGENTS_DIR": str(state / "agents"),
                    "ESC_TOOL_EXECUTOR__LEASE_SECONDS": "1",
                    "ESC_SCHEDULER__REAP_SECONDS": "1",
                    "ESC_SCHEDULER__NEGLECT_SECONDS": "2",
                    "ESC_LOG": "warn",
                }
            )
            for agent in sorted((state / "agents" / "agents").glob("*.yaml")):
                stack.esc("agents", "apply", str(agent), env=stack.env())
            api = Api(stack.env())
            runs = self._kill_and_kill(stack, api)
            return self._judge(api, counter, runs, self._wait(api, runs))
        finally:
            stack.stop()
            counter.stop()
            stack.wipe()
            shutil.rmtree(state, ignore_errors=True)

    def _write_agents(self, folder, url):
        for kind in ("agents", "tools", "scenarios"):
            (folder / kind).mkdir(parents=True)
        for name, probe in (("probed", _PROBE.format(url=url)), ("blind", "")):
            (folder / "tools" / f"drill.{name}.yaml").write_text(_TOOL.format(name=name, url=url, probe=probe))
            (folder / "agents" / f"drill-{name}.yaml").write_text(_AGENT.format(name=name))
            (folder / "scenarios" / f"drill-{name}.yaml").write_text(_SCENARIO.format(name=name))

    def _kill_and_kill(self, stack, api):
        runs = []
        for kill in range(self._kills):
            for _ in range(RUNS_PER_KILL):
                # One in six can't be asked about.
                name = "blind" if self._random.random() < 1 / 6 else "probed"
                runs.append(api.post("/v1/runs", {"agent": f"drill-{name}", "input": "Count."})["run_id"])
            time.sleep(self._random.uniform(0, 0.4))
            stack.kill("tool-executor")
            stack.spawn("tool-executor")
            if (kill + 1) % 50 == 0:
                say(f"  {kill + 1} of {self._kills} kills")
        return runs

    def _wait(self, api, runs):
        """The status of each run, once it has ended or the patience has."""
        deadline, status = time.monotonic() + PATIENCE, {}
        while time.monotonic() < deadline:
            for run in runs:
                if status.get(run) not in _ENDS:
                    status[run] = api.run(run)["status"]
            if all(status[run] in _ENDS for run in runs):
                break
            time.sleep(0.2)
        return status

    def _judge(self, api, counter, runs, status):
        told = dict.fromkeys(
            ("kills", "calls", "repeated", "in_doubt", "found_done", "found_not_done", "unknown", "duplicates", "lost"), 0
        )
        told["kills"], told["seed"], problems = self._kills, self._seed, []
        for run in runs:
            events = list(api.events(run))
            calls = [event["data"]["call"]["call_id"] for event in events if event["type"] == "tool.requested"]
            names = [event["type"] for event in events]
            findings = [event["data"]["finding"] for event in events if event["type"] == "tool.reconciled"]
            told["in_doubt"] += names.count("tool.in_doubt")
            told["found_done"] += findings.count("done")
            told["found_not_done"] += findings.count("not_done")
            told["unknown"] += findings.count("unknown")
            if status[run] != "completed":
                problems.append(f"run {run} is {status[run]}")
            for call in calls:
                told["calls"] += 1
                times, completed = counter.effects(call), "tool.completed" in names
                told["repeated"] += counter.asked(call) > 1
                if times > 1:
                    told["duplicates"] += 1
                    problems.append(f"the effect of call {call} of run {run} happened {times} times")
                if completed and times == 0:
                    told["lost"] += 1
                    problems.append(f"call {call} of run {run} is told as done, and has not happened")
                if not completed and "unknown" not in findings:
                    told["lost"] += 1
                    problems.append(f"call {call} of run {run} has no outcome")
        told["problems"] = problems
        return told


def report(told):
    """The outcome for people, and as one JSON object on the last line."""
    say(
        "{kills} kills around {calls} calls: {in_doubt} in doubt, of which {found_done} were found done, {found_not_done} not "
        "done and done then, {unknown} told as unknown; {duplicates} duplicates, {lost} lost.".format(**told)
    )
    for problem in told["problems"]:
        say(f"  - {problem}")
    say(json.dumps(told))
