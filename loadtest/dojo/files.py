"""Tools, agents and scripted models, as the files that the services read."""

import json
import re
from collections import defaultdict


def write(folder, suites, labels, cases):
    """Everything under `folder`; the agent files. `labels` empty: the tools say nothing but what they do."""
    for name in ("tools", "agents", "scenarios"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in {case.suite for case in cases}:
        for tool in suites[name].tools:
            label = labels.get(name, {}).get(tool.name) or {}
            _dump(folder / "tools" / f"{name}.{tool.name}.yaml", _tool(name, tool, label))
    by_task = defaultdict(list)
    for case in cases:
        by_task[case.suite, case.user_task].append(case)
    agents = []
    for (suite, _), of_task in by_task.items():
        name = agent_of(of_task[0])
        _dump(folder / "scenarios" / f"{name}.yaml", _scenario(name, of_task))
        agents.append(folder / "agents" / f"{name}.yaml")
        _dump(
            agents[-1],
            {
                "name": name,
                "model": f"scripted:{name}",
                "instructions": "Do what you are asked to do.",
                "tools": [f"{suite}.{tool.name}" for tool in suites[suite].tools],
            },
        )
    return agents


def agent_of(case):
    """Every case of a user task has the same agent."""
    return f"dojo-{case.name.partition('i')[0]}"


def objective_of(case):
    """What the operator says, and a mark by which the script knows its part."""
    return f"{case.objective} (case {case.name})"


def effect_of(label):
    """What the label says that a function does."""
    return (label.get("effect") or ["read"])[0]


def _tool(suite, tool, label):
    schema = tool.parameters.model_json_schema()
    properties = {name: _inline(field, schema.get("$defs", {})) for name, field in schema["properties"].items()}
    for name in label.get("matters", {}):
        properties[name]["x-matters"] = True
    for name, words in label.get("words", {}).items():
        properties[name]["x-words"] = words
    properties["case"] = {"type": "string", "description": "Which case"}
    spec = {
        "name": f"{suite}.{tool.name}",
        "description": tool.description.strip() or tool.name,
        "effect": effect_of(label),
        "idempotent": False,
        "timeout": "30s",
        "input": {
            "type": "object",
            "properties": properties,
            "required": [*schema.get("required", []), "case"],
        },
        "run": {
            "http": {"method": "POST", "url": "{env:ESC_DOJO_URL}/" + tool.name, "allow_private": True},
        },
    }
    if label.get("system"):
        spec["output"] = _output(label["system"])
    return spec


def _inline(field, definitions):
    """Without references and `anyOf` with null, which labels do not look through."""
    if "$ref" in field:
        field = {**definitions[field["$ref"].rpartition("/")[2]], **{k: v for k, v in field.items() if k != "$ref"}}
    options = [option for option in field.get("anyOf", []) if option.get("type") != "null"]
    if len(options) == 1:
        field = {**{k: v for k, v in field.items() if k not in ("anyOf", "default")}, **options[0]}
    if "items" in field and isinstance(field["items"], dict):
        field = {**field, "items": _inline(field["items"], definitions)}
    # A default of null is no default for us: the argument is left out instead.
    return {key: value for key, value in field.items() if not (key == "default" and value is None)}


def _output(places):
    """A schema that labels these places."""
    schema = {}
    for place in places:
        at = schema
        for part in re.findall(r"\[\]|[^.\[\]]+", place):
            at = at.setdefault("items", {}) if part == "[]" else at.setdefault("properties", {}).setdefault(part, {})
        at["x-trust"] = "system"
    return schema


def _scenario(name, cases):
    """The user's part is the same in each case; what a stranger asks for comes after it, in the cases that have it."""
    seen = r"\(case (?P<case>[a-z0-9]+)\)"
    user = [step for step in cases[0].steps if not step.injected]
    steps = [_step(number, call, cases[0].suite, [seen]) for number, call in enumerate(user, 1)]
    for case in cases:
        for number, call in enumerate(case.steps, 1):
            if call.injected:
                steps.append(_step(number, call, case.suite, [rf"\(case {case.name}\)", seen]))
    steps.append({"name": "done", "calls": [{"tool": "complete", "arguments": {"summary": "Done."}}]})
    return {"name": name, "description": "Does what it is asked to do, whoever asks.", "steps": steps}


def _step(number, call, suite, sees):
    arguments = {**json.loads(json.dumps(call.arguments, default=str)), "case": "{{case}}"}
    return {
        "name": f"{number} {call.function}",
        "when": {"turn": number, "sees": sees},
        "calls": [{"tool": f"{suite}.{call.function}", "arguments": arguments}],
    }


def _dump(path, document):
    # JSON is YAML too.
    path.write_text(json.dumps(document, indent=1))
