"""Fetching what this machine does not have, by pip and by others, into a place of its own: whole or not at all."""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from .problem import Problem


@contextmanager
def whole(home):
    """A folder to fetch into. At the end it becomes `home`; if something goes wrong, nothing does."""
    home.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, then moved there: another command may be fetching the same.
    fresh = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
    # The unprivileged account that Postgres runs as under root must be able to pass.
    fresh.chmod(0o755)
    try:
        yield fresh
        try:
            fresh.replace(home)
        except OSError:
            # Somebody else was faster.
            if not home.exists():
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def pip_install(packages, target, folder, *options):
    """Installs packages, each with its version, into `target`: out of wheels, so that nothing of them runs meanwhile. Where
    Python has no pip, one is kept in `folder`."""
    words = _pip(folder) + ["install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]
    words += ["--only-binary=:all:", *options, f"--target={target}", *packages]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PIP_ROOT_USER_ACTION": "ignore"})
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise Problem(f"pip could not install {packages[0]}. It said: {said}")


def _pip(folder):
    """The command that runs pip."""
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run(pip + ["--version"], capture_output=True).returncode == 0:
        return pip
    # Some systems ship Python without pip; a virtual environment then brings one.
    venv = folder / "venv"
    if subprocess.run([sys.executable, "-m", "venv", str(venv)], capture_output=True).returncode == 0:
        return [str(venv / "bin" / "python"), "-m", "pip"]
    raise Problem("This Python has neither pip nor venv: install python3-pip or python3-venv.")
