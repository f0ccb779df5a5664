"""A stack of its own for a mixed load, with the world around it, and the check of its log."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from local import Ports, Problem

from .world import World

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent


class Stage:
    """A stack on free ports over a temporary folder, and a world. `sound` is set by whoever found nothing wrong."""

    def __init__(self, stack, world):
        self.stack, self.world = stack, world
        self.sound = False

    def start(self, env):
        """Build and start all of it, with the agents of the mixed load."""
        stack = self.stack
        stack.build()
        self.world.start()
        stack.start_parts()
        stack.migrate()
        stack.start_services(
            env={"ESC_AGENTS_DIR": str(FOLDER), "ESC_WORLD_URL": self.world.url, "ESC_LOG": "info", **env}
        )
        files = sorted((FOLDER / "agents").glob("*.yaml"))
        stack.esc("agents", "apply", *map(str, files), env={**stack.env(), "ESC_AGENTS_DIR": str(FOLDER)})

    def check(self):
        """What `loadtest/check --settled` finds in the log."""
        words = [str(self.stack.program("loadtest")), "check", "--settled", "--json"]
        env = {**os.environ, **self.stack.operator_env()}
        done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True)
        if not done.stdout.strip():
            raise Problem(f"The check failed (exit {done.returncode}).")
        return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def staged(kind, make, seed):
    """A stage that is not started; stopped and deleted at the end. The logs of one that is not sound are kept."""
    state = Path(tempfile.mkdtemp(prefix=f"escapement-{kind}-"))
    # The unprivileged account that Postgres runs as under root must be able to pass.
    state.chmod(0o755)
    stage = Stage(make(ROOT, Ports.free(), state), World(seed))
    try:
        yield stage
    finally:
        stage.world.stop()
        stage.stack.stop()
        if not stage.sound and (state / "log").is_dir():
            kept = Path(tempfile.mkdtemp(prefix=f"escapement-{kind}-seed-{seed}-"))
            shutil.copytree(state / "log", kept / "log", dirs_exist_ok=True)
            print(f"The logs are in {kept}/log.", file=sys.stderr)
        stage.stack.wipe()
        shutil.rmtree(state, ignore_errors=True)
