"""Getting Schemathesis, which reads the API's own description and tries to break what it promises. Pinned."""

import sys

from . import wheels

VERSION = "4.32.5"


def get(folder):
    """The command, and the environment that it needs; fetched into `folder` the first time."""
    home = wheels.get("schemathesis", VERSION, folder)
    code = "from schemathesis.cli import schemathesis; schemathesis()"
    return [sys.executable, "-c", code], {"PYTHONPATH": str(home)}
