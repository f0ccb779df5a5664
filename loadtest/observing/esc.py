"""`esc observe` on a log, as a user would run it, and what it says about it."""

import json
import re
import subprocess
import tempfile
from pathlib import Path

PREFIX = re.compile(r"^\s*(?:\[?(?:task )?\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\]?\s*)?(?:\d\d:\d\d:\d\d\s+)?")
COLOURS = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


class Observed:
    """The observations of one log."""

    def __init__(self, answer):
        self.wakes = answer["wakes"]
        self.packs = answer["packs"]
        last = answer["observations"][-1]
        # The model sees what wakes it, and the end.
        shown = [told for told in answer["observations"][:-1] if told.get("decision")] + [last]
        evidence = [evidence for told in shown for evidence in told["evidence"]]
        self.decides = last.get("decision") is not None
        self.excerpts = [plain(one["excerpt"]) for one in evidence]
        self.rules = [one["rule"] for one in evidence]
        self.packet_bytes = max(map(packet, shown))
        self.log_bytes = last["counts"]["bytes"]

    def place_of(self, text):
        """Which excerpt, from 0, holds a text; none if no one does."""
        return next((at for at, excerpt in enumerate(self.excerpts) if text in excerpt), None)


class Esc:
    """The program."""

    def __init__(self, program, packs=None):
        self.program, self.packs = program, packs

    def observe(self, log, exit_code=None, passing=()):
        """What it concludes from the bytes of a log."""
        words = [] if exit_code is None else ["--exit", str(exit_code)]
        words += [word for path in passing for word in ("--passing", str(path))]
        return Observed(self._run(log, words))

    def findings(self, log):
        """Where it says that something is wrong: (file, line or None, message)."""
        answer = self._run(log, ["--findings"])
        return [(found["file"], found["line"], found["message"]) for found in answer["findings"]]

    def _run(self, log, words):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log"
            path.write_bytes(log)
            words = [str(self.program), "observe", str(path), "--json", *words]
            words += ["--packs", str(self.packs)] if self.packs else []
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if not done.stdout.strip():
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return json.loads(done.stdout.splitlines()[-1])


def packet(told):
    """Bytes of what an observation says."""
    said = [told["changed"], told.get("decision") or "", told.get("missing") or ""]
    said += [text for evidence in told["evidence"] for text in (evidence["excerpt"], evidence["rule"])]
    return sum(len(text.encode()) for text in said)


def plain(text):
    """Without colours and stamps, line by line."""
    return "\n".join(PREFIX.sub("", COLOURS.sub("", line)) for line in text.split("\n"))
