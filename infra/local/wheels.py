"""Getting Python packages that tests use, out of pinned PyPI wheels, each in a folder of its own."""

import importlib
import sys
from pathlib import Path

from . import fetch
from .problem import say


def get(package, version, folder):
    """The folder to import a package and its needs from; fetched into `folder` the first time."""
    home = Path(folder) / f"{package}-{version}"
    if not home.exists():
        say(f"Getting {package} {version} (once) ...")
        with fetch.whole(home) as fresh:
            fetch.pip_install([f"{package}=={version}"], fresh, home.parent)
    return home


def load(package, version, folder, *modules):
    """Modules of a package, imported."""
    home = str(get(package, version, folder))
    if home not in sys.path:
        sys.path.insert(0, home)
    return [importlib.import_module(name) for name in modules]
