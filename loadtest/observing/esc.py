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
        self.last = answer["observations"][-1]
        self.decides = self.last.get("decision") is not None
        self.excerpts = [plain(evidence["excerpt"]) for evidence in self.last["evidence"]]
        self.rules = [evidence["rule"] for evidence in self.last["evidence"]]
        said = [self.last["changed"], self.last.get("decision") or "", self.last.get("missing") or ""]
        self.packet_bytes = sum(
            len(text.encode())
            for text in [*said, *(evidence["excerpt"] for evidence in self.last["evidence"]), *self.rules]
        )
        self.log_bytes = self.last["counts"]["bytes"]

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


def plain(text):
    """Without colours and stamps, line by line."""
    return "\n".join(PREFIX.sub("", COLOURS.sub("", line)) for line in text.split("\n"))
