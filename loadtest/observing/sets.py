"""The sets of logs, each with what its labels say."""

import gzip
import json
import re
from pathlib import Path

from .esc import plain

# Enough of a line to know it again; the rest may be cut in an excerpt.
KNOWN = 60


def fragments(folder):
    """Pieces of failing logs: (name, log, the text that a person should be shown). The marks of the labels are taken out."""
    labels = json.loads((folder / "labels.json").read_text())
    for name in sorted(labels):
        text = (folder / name).read_text(errors="replace")
        lines = text.split("\n")
        wanted = [_known(lines[number - 1]) for number in labels[name]["match_lines"]]
        yield name, text.replace("‹", "").replace("›", "").encode(), wanted


def _known(line):
    """What of a labelled line must be shown: the longest marked part, or its beginning."""
    marked = [plain(part) for part in re.findall("‹([^›]*)›", line)]
    longest = max(marked, key=len, default="").strip()
    text = longest or plain(line.replace("‹", "").replace("›", "")).strip()
    return text[:KNOWN].rstrip()


def whole(folder):
    """Whole logs: (name, log, the labelled lines)."""
    for path in sorted(folder.glob("*.log.gz")):
        labels = json.loads((folder / path.name.replace(".log.gz", ".labels.json")).read_text())
        log = gzip.decompress(path.read_bytes())
        lines = re.split(rb"\r\n|\n|\r", log)
        wanted = [plain(lines[error["linenumber"]].decode(errors="replace")).strip() for error in labels["errors"]]
        yield path.name, log, wanted


def tools(folder):
    """Output of compilers and linters: (tool, output, its findings as (file, line or None, message))."""
    for path in sorted(folder.glob("*.in")):
        yield path.stem, path.read_bytes(), list(_findings(path.with_suffix(".ok")))


def _findings(path):
    for line in path.read_text(errors="replace").splitlines():
        parts = line.split("|", 2)
        if len(parts) == 3 and parts[0].strip():
            number = re.match(r"\s*(\d+)", parts[1])
            yield parts[0].strip(), int(number[1]) if number else None, parts[2].strip()


def plain_logs(folder):
    """Logs without labels, of programs that ended well: (name, log)."""
    for path in sorted(folder.glob("*.log")) + sorted(folder.glob("*.log.gz")):
        data = Path(path).read_bytes()
        yield path.name, gzip.decompress(data) if path.suffix == ".gz" else data
