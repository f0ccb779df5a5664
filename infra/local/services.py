"""The seven services as processes, each with its own credentials and nobody else's."""

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

from . import health
from .process import Process
from .settings import SERVICES, check_free, role

# Those that others call come first; the public door opens last and closes first.
START_ORDER = ("artifact", "approval", "scheduler", "observer", "tool-executor", "planner", "ingress")

_SECRET = re.compile(r"(_KEY|_TOKEN|_TOKENS|_SECRET|_PASSWORD)$")
_KEYS_FOR = {"planner": re.compile(r"_API_KEY$"), "artifact": re.compile(r"^AWS_")}
_CONNECTION = re.compile(r"^ESC_(TEST_.*|URL|(NATS|DATABASE|REDIS|ARTIFACT)_URL)$")
_NOTHING = re.compile(r"(?!)")
# Folders of ESC_AGENTS_DIR whose files count from the next start on; agents, scenarios and webhooks are read anew when they change.
_READ_AT_START = {"planner": ("tools", "servers"), "tool-executor": ("tools", "servers")}


class Service:
    """One instance of a service."""

    def __init__(self, name, port, state, instance=1):
        self.service, self.port = name, port
        self.name = name if instance == 1 else f"{name}-{instance}"
        self.process = Process(self.name, state)

    def launch(self, program, env, cwd):
        """Start it; `wait` then waits until it is ready."""
        check_free(self.name, self.port)
        self.process.start([program], self.port, env=env, settings=self._own(env, cwd), cwd=cwd)

    def is_current(self, env, cwd):
        """Whether it runs the program as built last, with the settings in `env` and the files as they are."""
        return self.process.was_told(self._own(env, cwd)) and not self.process.outdated

    def _own(self, env, cwd):
        """What it has to be started anew for when it changes: settings, keys, and files that it reads at its start."""
        keys = _KEYS_FOR.get(self.service, _NOTHING)
        told = {key: value for key, value in env.items() if key.startswith("ESC_") or keys.search(key)}
        agents = Path(cwd) / (env.get("ESC_AGENTS_DIR") or "infra/agents")
        for folder in _READ_AT_START.get(self.service, ()):
            told.update((str(file), _text(file)) for file in sorted((agents / folder).glob("*.y*ml")))
        return told

    def wait(self, seconds=60):
        """Wait until it says that it can work."""
        self.process.wait_ready(self.ready, seconds)

    def ready(self):
        """Whether it says that it can work."""
        return health.get(self.port, "/readyz")[0] == 200

    def version(self):
        """The version that it gives, or None."""
        try:
            return json.loads(health.get(self.port, "/healthz")[1]).get("version")
        except ValueError:
            return None

    def ask_to_stop(self):
        """SIGTERM: it drains and ends."""
        self.process.send(signal.SIGTERM)


def _interpreter():
    """Where the Python of this machine is, if it is no part of the system: the sample's pipeline is written in it, and what
    a confined command runs has to be named."""
    found = shutil.which("python3")
    folders = {os.path.realpath(sys.base_prefix)} | ({os.path.dirname(os.path.dirname(found))} if found else set())
    return sorted(folder for folder in folders if not folder.startswith(("/usr", "/bin", "/opt")) and folder != "/")


def _text(file):
    try:
        return file.read_text(errors="replace")
    except OSError:
        return None


def inherited(service, environ=os.environ):
    """What a service may see of our own environment: settings, but of secrets only the model keys for the planner and
    the object store's for artifact, and nothing meant for another service."""
    others = tuple(f"ESC_{name.replace('-', '_').upper()}__" for name in SERVICES if name != service)
    keys = _KEYS_FOR.get(service, _NOTHING)
    return {
        key: value
        for key, value in environ.items()
        if keys.search(key) or not (key.startswith(others) or _CONNECTION.match(key) or _SECRET.search(key))
    }


def environment(service, port, stack):
    """All that a service is told, from the stack that it is a part of."""
    local = {
        "ESC_NATS_URL": stack.nats_url(service),
        "ESC_DATABASE_URL": stack.database_url(role(service)),
        "ESC_REDIS_URL": stack.redis_url(),
        "ESC_LISTEN": f"127.0.0.1:{port}",
        "ESC_ARTIFACT_URL": f"http://127.0.0.1:{stack.ports['artifact']}",
        "ESC_INTERNAL_TOKEN": stack.credentials.internal,
    }
    if service == "tool-executor":
        local["ESC_TOOL_EXECUTOR__PROCESS_READ"] = json.dumps(_interpreter())
    if service == "ingress":
        local["ESC_TOKENS"] = str(stack.token_file)
    storage = {"ESC_ARTIFACTS_URL": str(stack.state / "artifacts"), "ESC_WORKSPACES": str(stack.state / "workspaces")}
    return {**storage, **inherited(service), **local}
