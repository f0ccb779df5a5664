"""Getting what webhooks are tested with: every payload that GitHub's own client publishes, pinned."""

import shutil
import tempfile
from pathlib import Path

from . import mcp
from .problem import say

PACKAGE = ("@octokit/webhooks-examples", "7.6.1")


def get(folder):
    """The file of all payloads, fetched into `folder` the first time: whole or not at all."""
    name, version = PACKAGE
    home = Path(folder) / f"octokit-{version}"
    if not home.exists():
        say("Getting GitHub's published webhook payloads (once) ...")
        kit = mcp.get(folder)
        fresh = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
        try:
            mcp.npm_install(kit.node, fresh / "npm", {name: version})
            if not home.exists():
                fresh.replace(home)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return home / "npm" / "node_modules" / name / "api.github.com" / "index.json"
