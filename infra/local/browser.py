"""A headless Chromium and what drives it, for the tests of the console."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import fetch
from .problem import Problem, say

PLAYWRIGHT = "playwright==1.65.2"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium():
    """The path of a Chromium. On Debian and as root it is installed when there is none; otherwise a Problem says how."""
    found = _on_path()
    if found:
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        say("Installing Chromium for the tests of the console (once) ...")
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["apt-get", "update", "-q"], ["apt-get", "install", "-qy", "--no-install-recommends", "chromium"]):
            subprocess.run(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = _on_path()
        if found:
            return found
    raise Problem("No Chromium on PATH: install the package `chromium` to test the console.")


def playwright(folder):
    """Makes the module `playwright` importable, fetched into `folder` the first time."""
    home = Path(folder) / f"browser-{hashlib.sha256(PLAYWRIGHT.encode()).hexdigest()[:12]}"
    if not home.exists():
        say("Getting what drives the browser (once) ...")
        with fetch.whole(home) as fresh:
            fetch.pip_install([PLAYWRIGHT], fresh / "python", home.parent)
    sys.path.insert(0, str(home / "python"))


def _on_path():
    return next(filter(None, map(shutil.which, _NAMES)), None)
