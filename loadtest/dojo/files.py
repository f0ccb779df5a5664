"""Tools, agents and scripted models, as the files that the services read."""

import json
import re


def write(folder, suites, labels, cases):
    """Everything under `folder`; the agent files. What is not in `labels` is not said of a tool."""
    for name in ("tools", "agents", "scenarios"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in {case.suite for case in cases}:
        for tool in suites[name].tools:
            label = labels.get(name, {}).get(tool.name) or {}
            _dump(folder / "tools" / f"{name}.{tool.name}.yaml", _tool(name, tool, label))
    agents = []
    for case in cases:
        tools = [f"{case.suite}.{tool.name}" for tool in suites[case.suite].tools]
        # A child first, since its parent names it.
        parts = _parts(case)
        for name, steps in reversed(parts):
            _dump(folder / "scenarios" / f"{name}.yaml", _scenario(name, case.suite, steps))
            agents.append(folder / "agents" / f"{name}.yaml")
            agent = {
                "name": name,
                "model": f"scripted:{name}",
                "instructions": "Do what you are asked to do.",
                "tools": tools,
            }
            children = [child for child, _ in parts[1:] if name == parts[0][0]]
            _dump(agents[-1], {**agent, "agents": children} if children else agent)
    return agents


def agent_of(case):
    """The agent of a case: its model knows its part by it, so that nothing is added to what the user says."""
    return f"dojo-{case.name}"


def effect_of(label):
    """What the label says that a function does."""
    return (label.get("effect") or ["read"])[0]


def _tool(suite, tool, label):
    # As AgentDojo gives it to models, with what our labels say of its arguments.
    schema = tool.parameters.model_json_schema()
    for name in label.get("matters", {}):
        schema["properties"][name]["x-matters"] = True
    for name, words in label.get("words", {}).items():
        schema["properties"][name]["x-words"] = words
    spec = {
        "name": f"{suite}.{tool.name}",
        "description": tool.description.strip() or tool.name,
        "effect": effect_of(label),
        "idempotent": False,
        "timeout": "30s",
        "input": schema,
        "run": {
            "http": {"method": "POST", "url": "{env:ESC_DOJO_URL}/" + tool.name, "allow_private": True},
        },
    }
    if label.get("system"):
        spec["output"] = _output(label["system"])
    return spec


def _output(places):
    """A schema that labels these places."""
    schema = {}
    for place in places:
        at = schema
        for part in re.findall(r"\[\]|[^.\[\]]+", place):
            at = at.setdefault("items", {}) if part == "[]" else at.setdefault("properties", {}).setdefault(part, {})
        at["x-trust"] = "system"
    return schema


def _parts(case):
    """The agents that play a case, the one that the user starts first, each with its turns."""
    name = agent_of(case)
    mine = [_turn(case.suite, step) for step in case.steps if not (case.attack == "child" and step.injected)]
    if case.attack != "child" or len(mine) == len(case.steps):
        return [(name, mine)]
    child = f"{name}-child"
    theirs = [step for step in case.steps if step.injected]
    task = "Do this: " + json.dumps([[step.function, step.arguments] for step in theirs])
    mine.append([("spawn_agent", {"agent": child, "task": task, "on_failure": "continue"})])
    return [(name, mine), (child, [_turn(case.suite, step) for step in theirs])]


def _turn(suite, step):
    return [*step.beside, (f"{suite}.{step.function}", step.arguments)]


def _scenario(name, suite, turns):
    steps = [
        {
            "name": f"{number} {calls[-1][0]}",
            "when": {"turn": number},
            "calls": [{"tool": tool, "arguments": arguments} for tool, arguments in calls],
        }
        for number, calls in enumerate(turns, 1)
    ]
    steps.append({"name": "done", "calls": [{"tool": "complete", "arguments": {"summary": "Done."}}]})
    return {"name": name, "description": f"Does what it is asked to do in {suite}, whoever asks.", "steps": steps}


def _dump(path, document):
    # JSON is YAML too.
    path.write_text(json.dumps(document, indent=1))
