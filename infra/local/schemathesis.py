"""Getting Schemathesis, which reads the API's own description and tries to break what it promises. Pinned."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .parts import pip_command
from .problem import Problem, say

VERSION = "4.32.5"


def get(folder):
    """The command, and the environment that it needs; fetched into `folder` the first time: whole or not at all."""
    home = Path(folder) / f"schemathesis-{VERSION}"
    if not home.exists():
        say("Getting Schemathesis (once) ...")
        home.parent.mkdir(parents=True, exist_ok=True)
        # Beside its place, then moved there: another command may be fetching the same.
        fresh = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
        try:
            words = pip_command(home.parent) + ["install", "--quiet", "--disable-pip-version-check", "--no-input"]
            words += ["--only-binary=:all:", f"--target={fresh}", f"schemathesis=={VERSION}"]
            env = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
            done = subprocess.run(words, capture_output=True, text=True, env=env)
            if done.returncode != 0:
                said = (done.stderr.strip() or "nothing").splitlines()[-1]
                raise Problem(f"The test of the API needs Schemathesis, which could not be fetched. It said: {said}")
            if not home.exists():
                fresh.replace(home)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    code = "from schemathesis.cli import schemathesis; schemathesis()"
    return [sys.executable, "-c", code], {"PYTHONPATH": str(home)}
