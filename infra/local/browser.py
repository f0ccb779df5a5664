"""A headless Chromium and what drives it, for the tests of the console."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .parts import pip_command
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
    """Makes the module `playwright` importable, fetched into `folder` the first time: whole or not at all."""
    home = Path(folder) / f"browser-{hashlib.sha256(PLAYWRIGHT.encode()).hexdigest()[:12]}"
    if not home.exists():
        say("Getting what drives the browser (once) ...")
        home.parent.mkdir(parents=True, exist_ok=True)
        # Beside its place, then moved there: another command may be fetching the same.
        fresh = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
        words = [*pip_command(fresh), "install", "--quiet", "--disable-pip-version-check", "--target", str(fresh / "python")]
        env = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
        done = subprocess.run([*words, PLAYWRIGHT], env=env, capture_output=True, text=True)
        if done.returncode != 0:
            shutil.rmtree(fresh, ignore_errors=True)
            raise Problem(f"pip could not install {PLAYWRIGHT}: {done.stderr.strip()[-400:]}")
        try:
            fresh.rename(home)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)
    sys.path.insert(0, str(home / "python"))


def _on_path():
    return next(filter(None, map(shutil.which, _NAMES)), None)
