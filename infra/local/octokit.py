"""Getting what webhooks are tested with: every payload that GitHub's own client publishes, pinned."""

from pathlib import Path

from . import fetch, mcp
from .problem import say

PACKAGE = ("@octokit/webhooks-examples", "7.6.1")


def get(folder):
    """The file of all payloads, fetched into `folder` the first time."""
    name, version = PACKAGE
    home = Path(folder) / f"octokit-{version}"
    if not home.exists():
        say("Getting GitHub's published webhook payloads (once) ...")
        kit = mcp.get(folder)
        with fetch.whole(home) as fresh:
            mcp.npm_install(kit.node, fresh / "npm", {name: version})
    return home / "npm" / "node_modules" / name / "api.github.com" / "index.json"
