"""Restate as a peer: one server and one Node service on loopback, with the settings that they ship with.

npm gets both, in the versions that package.json pins, into `.local/peers/`. Nothing is put into the tree.
"""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from local import Problem, fetch, say
from local.health import get
from local.process import Process

HERE = Path(__file__).resolve().parent


class Restate:
    """A Restate server over an empty folder, from `start` to `stop`. `partitions`: how many, if not its default."""

    def __init__(self, root, partitions=None):
        self._peers = Path(root) / ".local" / "peers"
        self._partitions = partitions
        self._home = self._state = self._server = None
        self._ports = {}

    def get(self):
        """Fetch it the first time."""
        for program in ("node", "npm"):
            if shutil.which(program) is None:
                raise Problem(f"Restate comes by npm and there is no {program} on PATH: install Node 20 or newer.")
        wanted = (HERE / "package.json").read_bytes()
        self._home = self._peers / f"restate-{hashlib.sha256(wanted).hexdigest()[:12]}"
        if not self._home.exists():
            say("Getting Restate by npm (once) ...")
            _install(wanted, self._home)
        if not self._programs():
            raise Problem(f"Restate's server has no program for this machine in {self._home}.")

    def start(self):
        """Start the server; the driver starts the service."""
        self._state = Path(tempfile.mkdtemp(prefix="restate-load-"))
        self._ports = dict(zip(("ingress", "admin", "node"), _free_ports(3)))
        env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("RESTATE_")},
            "RESTATE_BASE_DIR": str(self._state / "data"),
            "RESTATE_BIND_IP": "127.0.0.1",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BIND_PORT": str(self._ports["node"]),
            "RESTATE_INGRESS__BIND_PORT": str(self._ports["ingress"]),
            "RESTATE_ADMIN__BIND_PORT": str(self._ports["admin"]),
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LOG_FILTER": "error",
        }
        if self._partitions:
            env["RESTATE_DEFAULT_NUM_PARTITIONS"] = str(self._partitions)
        self._server = Process("restate-server", self._state)
        self._server.start([self._programs()[0], "--no-logo"], self._ports["ingress"], env=env, cwd=self._state)
        self._server.wait_ready(self._ready, 60)

    def agent(self, concurrency, seconds):
        """Drive the workload; the figures, named as those of `loadtest/run agent`."""
        words = ["node", HERE / "driver.cjs", "--concurrency", concurrency, "--seconds", seconds]
        for door in ("ingress", "admin"):
            words += [f"--{door}", f"http://127.0.0.1:{self._ports[door]}"]
        env = {**os.environ, "NODE_PATH": str(self._home / "node_modules"), "RESTATE_LOGGING": "ERROR"}
        done = subprocess.run([str(word) for word in words], env=env, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise Problem(f"The driver of Restate failed. The end of the server's log:\n{self._server.tail()}")
        return json.loads(done.stdout.splitlines()[-1])

    def stop(self):
        """Stop the server and delete what it kept."""
        if self._server:
            self._server.stop(seconds=30)
        if self._state:
            shutil.rmtree(self._state, ignore_errors=True)
        self._server = self._state = None

    def _ready(self):
        # Healthy comes before the partitions have leaders; the ingress answers once they have.
        return get(self._ports["admin"], "/health")[0] == get(self._ports["ingress"], "/restate/health")[0] == 200

    def _programs(self):
        return sorted(self._home.glob("node_modules/@restatedev/restate-server-*/bin/restate-server"))


def _install(package, home):
    """Install into `home`."""
    with fetch.whole(home) as fresh:
        (fresh / "package.json").write_bytes(package)
        words = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
        done = subprocess.run(words, cwd=fresh, capture_output=True, text=True)
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["nothing"]
            raise Problem(f"npm could not install Restate's server and SDK. It said: {said[0]}")


def _free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in held]
    for listener in held:
        listener.close()
    return ports
