"""Getting Python packages that tests use, out of pinned PyPI wheels, each in a folder of its own."""

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .parts import pip_command
from .problem import Problem, say


def get(package, version, folder):
    """The folder to import a package and its needs from; fetched into `folder` the first time: whole or not at all."""
    home = Path(folder) / f"{package}-{version}"
    if not home.exists():
        say(f"Getting {package} {version} (once) ...")
        home.parent.mkdir(parents=True, exist_ok=True)
        # Beside its place, then moved there: another command may be fetching the same.
        fresh = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
        try:
            words = pip_command(home.parent) + ["install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]
            words += ["--only-binary=:all:", f"--target={fresh}", f"{package}=={version}"]
            env = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
            done = subprocess.run(words, capture_output=True, text=True, env=env)
            if done.returncode != 0:
                said = (done.stderr.strip() or "nothing").splitlines()[-1]
                raise Problem(f"A test needs {package}, which could not be fetched. It said: {said}")
            if not home.exists():
                fresh.replace(home)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return home


def load(package, version, folder, *modules):
    """Modules of a package, imported."""
    home = str(get(package, version, folder))
    if home not in sys.path:
        sys.path.insert(0, home)
    return [importlib.import_module(name) for name in modules]
