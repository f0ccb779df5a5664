"""What `run` and `compare` have in common: a stack of one's own, and the load generator run against it."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "infra"))
os.environ.setdefault("ESC_PROFILE", "release")

import local  # noqa: E402  the path is set just above
from local import Problem, Stack  # noqa: E402  the path is set just above

# A stack on free ports in a temporary folder, not started; stopped and deleted at the end.
own_stack = partial(local.own_stack, ROOT, "load")


def start(stack):
    """Start parts and services, all built."""
    stack.start_parts()
    stack.migrate()
    stack.start_services(env={"ESC_LOG": "warn"})


def generate(stack, words, env):
    """Run the load generator; its figures. What it says of trouble goes to our standard error."""
    words = [str(word) for word in (stack.program("loadtest"), *words, "--json")]
    done = subprocess.run(words, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Problem(f"The load generator failed (exit {done.returncode}).")
    return json.loads(done.stdout.splitlines()[-1])
