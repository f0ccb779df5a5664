"""Postgres refuses to run as root, so a root user's stack runs it as the system user `escapement`."""

import hashlib
import os
import pwd
import shutil
import subprocess
from pathlib import Path

from .problem import Problem, say
from .process import as_user

_NAME = "escapement"


def unprivileged():
    """The account to run Postgres as: None (ourselves) unless we are root."""
    if os.geteuid() != 0:
        return None
    for name in (_NAME, "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            pass
        if name == _NAME and shutil.which("useradd"):
            say(f"Postgres doesn't run as root: adding the system user {_NAME} for it.")
            subprocess.run(
                ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", _NAME], capture_output=True
            )
            try:
                return pwd.getpwnam(name)
            except KeyError:
                pass
    raise Problem("Postgres doesn't run as root and no unprivileged user could be made: run this as an ordinary user.")


def reachable(account, program, folder):
    """Whether `account` can run `program` and work in `folder` (the folders above may be closed to it)."""
    test = subprocess.run(
        ["/bin/sh", "-c", 'test -x "$0" && test -x "$1"', str(program), str(folder)], cwd="/", **as_user(account)
    )
    return test.returncode == 0


def elsewhere(state):
    """A home for Postgres outside a tree that its user can't enter; the same one for the same tree."""
    mark = hashlib.sha256(str(Path(state).resolve()).encode()).hexdigest()[:12]
    return Path("/var/lib") / f"{_NAME}-{mark}"
