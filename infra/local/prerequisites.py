"""What must be on the machine before anything starts; what is missing is named in one sentence."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from .problem import Problem

_BUILD_SPACE = 6 << 30
_RUN_SPACE = 1 << 30


def check(root, building=True):
    """Raise one Problem that names everything missing."""
    missing = [
        found for found in (_space(root, building), building and _cargo(root), building and _compiler()) if found
    ]
    if missing:
        raise Problem(" ".join(missing))


def _space(root, building):
    target = root / (os.environ.get("CARGO_TARGET_DIR") or "target")
    needed = _BUILD_SPACE if building and not target.exists() else _RUN_SPACE
    free = shutil.disk_usage(root).free
    if free < needed:
        return f"The disk under {root} has {free >> 20} MiB free and {needed >> 20} MiB are needed: make room."
    return None


def _cargo(root):
    # rustup puts cargo where a shell that was open before doesn't look yet.
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "bin"
    if shutil.which("cargo") is None and (home / "cargo").exists():
        os.environ["PATH"] = f"{home}{os.pathsep}{os.environ.get('PATH', '')}"
    if shutil.which("cargo") is None:
        return "No Rust toolchain: install one (cargo, with rustup or your system's packages)."
    wanted = re.search(r'rust-version = "([\d.]+)"', (root / "Cargo.toml").read_text()).group(1)
    shown = subprocess.run(["cargo", "--version"], cwd=root, capture_output=True, text=True)
    found = re.search(r"\d+(\.\d+)+", shown.stdout)
    if found is None:
        return f"cargo does not run: {(shown.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    if _numbers(found.group()) < _numbers(wanted):
        return f"cargo is {found.group()} and {wanted} or newer is needed: update the Rust toolchain."
    return None


def _compiler():
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    if not any(shutil.which(name) for name in names):
        return "No C compiler: install gcc or clang (Debian: build-essential)."
    return None


def _numbers(version):
    return tuple(int(number) for number in version.split("."))
