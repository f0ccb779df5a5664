#!/usr/bin/env python3
"""Writes expected.json beside recorded answers of providers: what a reader of them has to find.

    expect.py FOLDER

A reading of its own of the formats, by another hand than the planner's: run it when recordings are added, and look at what it
says about them.
"""
import hashlib
import json
import pathlib
import re
import sys


def digest(text):
    return [len(text), hashlib.sha256(text.encode()).hexdigest()[:12]]


def events(path):
    """The JSON of each event; what is no JSON is left out."""
    if path.suffix == ".json":
        return [json.loads(path.read_text())]
    found = []
    for line in path.read_text().splitlines():
        line = line.removeprefix("data:").strip()
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    return found


def arguments(text):
    if isinstance(text, dict):
        return text
    text = text or ""
    if not text.strip():
        return {}
    try:
        return json.loads(text)
    except ValueError:
        return {"not json": text}


class Found:
    def __init__(self):
        self.text, self.reasoning, self.calls = "", "", []
        self.finish, self.usage, self.refused = None, None, False

    def shown(self):
        if self.refused:
            return {"error": "refused"}
        if not self.text.strip() and not self.calls and self.finish != "length":
            return {"error": "empty"}
        finish = self.finish
        if self.calls and finish in (None, "stop"):
            finish = "tool_calls"
        return {
            "text": digest(self.text), "reasoning": digest(self.reasoning), "calls": self.calls,
            "finish": finish or "stop", "usage": self.usage,
        }


def chat(rows):
    found, slots, order = Found(), {}, []
    for row in rows:
        for choice in row.get("choices") or []:
            message = choice.get("message") or choice.get("delta") or {}
            found.text += choice.get("text") or message.get("content") or ""
            found.reasoning += message.get("reasoning_content") or message.get("reasoning") or ""
            for at, piece in enumerate(message.get("tool_calls") or []):
                slot = piece.get("index", at)
                if slot not in slots:
                    slots[slot] = {"id": None, "name": "", "arguments": ""}
                    order.append(slot)
                slots[slot]["id"] = slots[slot]["id"] or piece.get("id") or None
                slots[slot]["name"] += piece["function"].get("name") or ""
                slots[slot]["arguments"] += piece["function"].get("arguments") or ""
            words = {"stop": "stop", "tool_calls": "tool_calls", "length": "length", "content_filter": "content_filter"}
            if choice.get("finish_reason"):
                found.finish = words[choice["finish_reason"]]
        usage = row.get("usage")
        if usage:
            details = usage.get("completion_tokens_details") or {}
            reasoning = details.get("reasoning_tokens") or 0
            output = usage["completion_tokens"]
            if reasoning and usage["total_tokens"] == usage["prompt_tokens"] + output + reasoning:
                output += reasoning
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            found.usage = [usage["prompt_tokens"], cached, 0, output, reasoning]
    for slot in order:
        slots[slot]["arguments"] = arguments(slots[slot]["arguments"])
        found.calls.append(slots[slot])
    return found


def responses(rows):
    found = Found()
    last = next((r["response"] for r in rows if r.get("type") in ("response.completed", "response.incomplete")), None)
    whole = last if last else (rows[0] if rows[0].get("object") == "response" else {})
    items = whole.get("output") or []
    done = [row["item"] for row in rows if row.get("type") == "response.output_item.done"]
    if not items or done:
        items = done
    for item in items:
        kind = item["type"]
        if kind == "message":
            found.text += "".join(part["text"] for part in item["content"] if part["type"] == "output_text")
        elif kind == "reasoning":
            for part in (item.get("summary") or []) + (item.get("content") or []):
                found.reasoning += part["text"]
        elif kind in ("function_call", "custom_tool_call"):
            given = arguments(item.get("arguments") or item.get("input"))
            uses = given.get("tool_uses") if item["name"] == "parallel" else None
            if uses:
                for number, use in enumerate(uses):
                    name = use["recipient_name"].removeprefix("functions.")
                    found.calls.append({"id": f"{item['call_id']}_{number}", "name": name, "arguments": use["parameters"]})
            else:
                found.calls.append({"id": item["call_id"], "name": item["name"], "arguments": given})
        elif kind in ("local_shell_call", "apply_patch_call") or (kind == "tool_search_call" and item.get("execution") == "client") or (
            kind == "shell_call" and not str((item.get("environment") or {}).get("type")).startswith("container")
        ):
            given = next(item[field] for field in ("arguments", "input", "action", "operation") if item.get(field))
            found.calls.append({"id": item.get("call_id") or item["id"], "name": kind.removesuffix("_call"), "arguments": given})
    if (whole.get("incomplete_details") or {}).get("reason") == "max_output_tokens":
        found.finish = "length"
    wholes = [row["response"] for row in rows if row.get("type") in ("response.completed", "response.incomplete")] or [whole]
    for usage in filter(None, (one.get("usage") for one in wholes)):
        sent, received = usage.get("input_tokens_details") or {}, usage.get("output_tokens_details") or {}
        counts = [
            usage["input_tokens"], sent.get("cached_tokens") or 0, sent.get("cache_write_tokens") or 0,
            usage["output_tokens"], received.get("reasoning_tokens") or 0,
        ]
        found.usage = [one + other for one, other in zip(found.usage or [0] * 5, counts)]
    return found


def anthropic(rows):
    found, blocks, usage = Found(), {}, {}
    for row in rows:
        kind = row.get("type")
        message = row.get("message") if kind == "message_start" else (row if kind == "message" else None)
        if message is not None:
            blocks = dict(enumerate([dict(block) for block in message["content"]]))
            usage = dict(message.get("usage") or {})
        if kind == "content_block_start":
            blocks[row["index"]] = dict(row["content_block"], pieces="")
        elif kind == "content_block_delta":
            block, delta = blocks[row["index"]], row["delta"]
            if delta["type"] == "text_delta":
                block["text"] = block.get("text", "") + delta["text"]
            elif delta["type"] == "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta["thinking"]
            elif delta["type"] == "input_json_delta":
                block["pieces"] += delta["partial_json"]
        if kind == "message_delta":
            usage.update({key: value for key, value in (row.get("usage") or {}).items() if value is not None})
        stop = (row.get("delta") or {}).get("stop_reason") if kind == "message_delta" else row.get("stop_reason")
        if stop:
            words = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "stop_sequence": "stop"}
            found.finish = words.get(stop, stop)
            found.refused |= stop == "refusal"
    for _, block in sorted(blocks.items()):
        if block["type"] == "text":
            found.text += block["text"]
        elif block["type"] == "thinking":
            found.reasoning += block["thinking"]
        elif block["type"] == "tool_use":
            found.calls.append(
                {"id": block["id"], "name": block["name"], "arguments": arguments(block.get("pieces") or block["input"])}
            )
    counts = [usage.get(name) or 0 for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")]
    for iteration in usage.get("iterations") or []:
        if iteration["type"] not in ("message", "fallback_message"):
            for at, name in enumerate(("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")):
                counts[at] += iteration.get(name) or 0
    fresh, read, written, output = counts
    thinking = (usage.get("output_tokens_details") or {}).get("thinking_tokens") or 0
    found.usage = [fresh + read + written, read, written, output, thinking]
    return found


def place(root, path, piece):
    """Writes a piece of an argument at its place."""
    steps = [int(index) if index else name for name, index in re.findall(r"([A-Za-z_]\w*)|\[(\d+)\]", path.removeprefix("$"))]
    at = root
    for step, then in zip(steps, steps[1:] + [None]):
        if isinstance(at, list):
            while len(at) <= step:
                at.append(None)
            child = at[step]
        else:
            child = at.get(step)
        if then is None:
            value = next(piece[name] for name in ("stringValue", "numberValue", "boolValue") if name in piece)
            at[step] = child + value if isinstance(child, str) else value
        elif child is None:
            at[step] = [] if isinstance(then, int) else {}
        at = at[step]


def gemini(rows):
    found = Found()
    for row in rows:
        for candidate in row.get("candidates") or []:
            for part in (candidate.get("content") or {}).get("parts") or []:
                call = part.get("functionCall")
                if call is not None:
                    if call.get("name"):
                        found.calls.append({"id": call.get("id"), "name": call["name"], "arguments": dict(call.get("args") or {})})
                    for piece in call.get("partialArgs") or []:
                        place(found.calls[-1]["arguments"], piece["jsonPath"], piece)
                elif part.get("thought"):
                    found.reasoning += part["text"]
                else:
                    found.text += part.get("text") or ""
            if candidate.get("finishReason"):
                found.finish = {"STOP": "stop", "MAX_TOKENS": "length"}[candidate["finishReason"]]
        usage = row.get("usageMetadata") or {}
        if "promptTokenCount" in usage:
            thoughts = usage.get("thoughtsTokenCount") or 0
            found.usage = [
                usage["promptTokenCount"] + (usage.get("toolUsePromptTokenCount") or 0), usage.get("cachedContentTokenCount") or 0, 0,
                (usage.get("candidatesTokenCount") or 0) + thoughts, thoughts,
            ]
    return found


def interactions(rows):
    found, steps = Found(), {}
    for row in rows:
        interaction = row.get("interaction") or (row if row.get("object") == "interaction" else {})
        for at, step in enumerate(interaction.get("steps") or []):
            steps[at] = dict(step, pieces="")
        if row.get("event_type") == "step.start":
            steps[row["index"]] = dict(row["step"], pieces="")
        elif row.get("event_type") == "step.delta":
            delta = row["delta"]
            steps[row["index"]]["pieces"] += delta.get("text") or (delta.get("arguments") if delta["type"] == "arguments_delta" else "") or ""
        usage = interaction.get("usage")
        if usage:
            thoughts = usage.get("total_thought_tokens") or 0
            found.usage = [
                usage["total_input_tokens"] + (usage.get("total_tool_use_tokens") or 0), usage.get("total_cached_tokens") or 0, 0,
                usage["total_output_tokens"] + thoughts, thoughts,
            ]
    for _, step in sorted(steps.items()):
        if step["type"] == "model_output":
            found.text += step["pieces"] + "".join(part.get("text") or "" for part in step.get("content") or [])
        elif step["type"] == "function_call":
            found.calls.append({"id": step.get("id"), "name": step["name"], "arguments": arguments(step["pieces"] or step["arguments"])})
        elif step["type"] == "thought":
            found.reasoning += "".join(part.get("text") or "" for part in step.get("summary") or [])
    return found


def expected(path):
    rows = events(path)
    for row in rows:
        error = row.get("error") or (row.get("response") or {}).get("error")
        if error:
            code = " ".join(str(error.get(name)) for name in ("type", "code", "status")).lower()
            if "insufficient_quota" in code:
                return {"error": "exhausted"}
            return {"error": "rate_limited" if "429" in code else "rejected"}
    first = rows[0]
    if any("choices" in row for row in rows):
        return chat(rows).shown()
    if first.get("object") == "response" or any(str(row.get("type")).startswith("response.") for row in rows):
        return responses(rows).shown()
    if first.get("type") in ("message", "message_start"):
        return anthropic(rows).shown()
    if any("candidates" in row for row in rows):
        return gemini(rows).shown()
    if first.get("object") == "interaction" or "event_type" in first:
        return interactions(rows).shown()
    return {"error": "garbled"}


def main():
    folder = pathlib.Path(sys.argv[1])
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".txt", ".sse") and path.name != "expected.json")
    found = {str(path.relative_to(folder)): expected(path) for path in files}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in found.items())
    (folder / "expected.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
