"""The stack: parts and services of one checkout, started, asked after and stopped together."""

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from . import prerequisites
from .credentials import Credentials, write_private
from .problem import Problem, say
from .servers import Nats, Postgres, Valkey
from .services import START_ORDER, Service, environment
from .settings import OWNER, SERVICES, Ports, is_free, variable

# What a service is given to drain by itself, and a little more.
_DRAIN = int(os.environ.get("ESC_DRAIN_SECONDS") or 20) + 5


@contextmanager
def own_stack(root, kind, open_parts=False, for_tests=False):
    """A stack on free ports in a temporary folder, not started; stopped and deleted at the end."""
    state = Path(tempfile.mkdtemp(prefix=f"escapement-{kind}-"))
    # The unprivileged account that Postgres runs as under root must be able to pass.
    state.chmod(0o755)
    stack = Stack(root, Ports.free(), state, open_parts, for_tests)
    try:
        yield stack
    finally:
        stack.stop()
        stack.wipe()
        shutil.rmtree(state, ignore_errors=True)


class Stack:
    """Parts and services over one state folder.

    `state` defaults to `ESC_LOCAL`, or else to `.local` of the checkout. `open_parts` gives parts without passwords, for tests on loopback.
    Parts `for_tests` take more connections, and lose data if the machine stops (not if only their process does), so that a busy disk holds nobody up.
    """

    def __init__(self, root, ports=None, state=None, open_parts=False, for_tests=False):
        self.root = Path(root)
        self.ports = ports or Ports.from_env()
        self.state = Path(state or os.environ.get("ESC_LOCAL") or self.root / ".local")
        self.token_file = self.state / "tokens.json"
        self.parts_folder = self.root / ".local" / "parts"
        # Settings for every service, over what it inherits from our own environment.
        self.settings = {}
        # Settings of Postgres, over those that a local cluster has.
        self.postgres_settings = {}
        self.for_tests = for_tests
        self._open_parts = open_parts
        self.parts = [server(self) for server in (Postgres, Nats, Valkey)]
        self.services = {name: Service(name, self.ports[name], self.state) for name in START_ORDER}
        self.services.update(self._extra_instances())

    @cached_property
    def credentials(self):
        """The secrets, made when first asked for; None with `open_parts`."""
        return None if self._open_parts else Credentials.keep(self.state / "secrets.json")

    # What to do with it, in the order of a start.

    @contextmanager
    def alone(self):
        """Keep a second `up` or `down` of the same state out meanwhile."""
        self.state.mkdir(parents=True, exist_ok=True)
        with open(self.state / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("Waiting for another infra command to finish ...")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield self

    def build(self):
        """Build the services and `esc`, in the profile that `ESC_PROFILE` names."""
        prerequisites.check(self.root)
        say("Building ...")
        words = ["cargo", "build", "--quiet", "--workspace", "--bins", "--profile", _profile()]
        if os.environ.get("ESC_BUILD_TESTS"):
            # Tests want more of some dependencies: with them beside, both are one build.
            words.append("--tests")
        if os.environ.get("ESC_FEATURES"):
            words += ["--features", os.environ["ESC_FEATURES"]]
        if subprocess.run(words, cwd=self.root).returncode != 0:
            raise Problem("The build failed; the compiler's own words are above.")

    def start_parts(self):
        """Get the parts, start those that don't run, wait until each answers."""
        prerequisites.check(self.root, building=False)
        for part in self.parts:
            self._check_port(part)
            part.get()
        for part in self.parts:
            part.launch()
        for part in self.parts:
            part.wait()

    def migrate(self):
        """Bring the database and the streams in step with the program, as their owners."""
        self.esc("migrate", env=self.operator_env())

    def start_services(self, env=None):
        """Start the services that don't run, or run an older build, with other settings or keys, or with tools as they were; wait
        until each is ready.

        `env` is added to `settings`, and so holds for later starts of this stack's services too."""
        self.settings.update(env or {})
        write_private(self.token_file, self.credentials.token_file())
        for name in START_ORDER:
            service = self.services[name]
            self._check_port(service)
            if not service.is_current(self._told(service), self.root):
                self.stop_service(name)
                self._launch(service)
        for name in START_ORDER:
            self.services[name].wait()

    def apply_agents(self):
        """Put the agents of `ESC_AGENTS_DIR` in, or else the shipped ones; those already there in the same words stay as
        they are."""
        folder = Path(os.environ.get("ESC_AGENTS_DIR") or self.root / "infra" / "agents") / "agents"
        files = sorted(folder.glob("*.yaml"))
        if files:
            self.esc("agents", "apply", *map(str, files), env=self.env())

    def stop(self):
        """Stop all that runs: the public door first, then the other services together, then the parts."""
        running = [service for service in self.services.values() if service.process.pid is not None]
        for group in (
            [service for service in running if service.service == "ingress"],
            [service for service in running if service.service != "ingress"],
        ):
            for service in group:
                service.ask_to_stop()
            for service in group:
                if not service.process.wait_gone(_DRAIN):
                    say(f"{service.name} did not drain within {_DRAIN} s and is killed.")
        for service in self.services.values():
            service.process.stop(signal.SIGKILL)
        for part in reversed(self.parts):
            part.stop()

    def wipe(self):
        """Delete the state; the fetched parts stay."""
        for part in self.parts:
            part.wipe()
        for path in self.state.iterdir() if self.state.exists() else ():
            if path.name not in ("parts", "lock"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    # One service at a time.

    def spawn(self, name, instance=1, env=None, wait=True):
        """Start an instance of a service, with settings of its own in `env`. Those after the first get a free port and
        are known as `NAME-INSTANCE`."""
        if instance > 1:
            extra = Service(name, Ports.free()[name], self.state, instance)
            name = extra.name
            self.services[name] = extra
        service = self.services[name]
        self._launch(service, env)
        if wait:
            service.wait()
        return service

    def kill(self, name):
        """SIGKILL, with no chance to tidy up."""
        service = self.services[name]
        service.process.send(signal.SIGKILL)
        service.process.wait_gone(60)
        # The first thread of a killed process may be gone while others still hold its sockets.
        deadline = time.monotonic() + 60
        while not is_free(service.port) and time.monotonic() < deadline:
            time.sleep(0.01)

    def restart(self, name, env=None):
        """Stop a service unless it is dead, start it, wait until it is ready."""
        self.stop_service(name)
        return self.spawn(name, env=env)

    def stop_service(self, name):
        """SIGTERM and drain; killed when the time is up."""
        self.services[name].process.stop(seconds=_DRAIN)

    # What to tell others.

    def status(self):
        """A table of all that should run and of extra instances: what, where, pid, ready (yes or no), version."""
        rows = [("what", "where", "pid", "ready", "version")]
        for thing in [*self.parts, *self.services.values()]:
            pid = thing.process.pid
            ready = pid is not None and thing.ready()
            version = thing.version() or "?" if pid else "-"
            if thing.process.outdated:
                version += " (an older build)"
            where = f"127.0.0.1:{thing.process.port or thing.port}"
            rows.append((thing.process.name, where, str(pid or "-"), "yes" if ready else "no", version))
        return rows

    def program(self, name):
        """The path of a built program."""
        target = Path(os.environ.get("CARGO_TARGET_DIR") or self.root / "target")
        return self.root / target / {"dev": "debug"}.get(_profile(), _profile()) / name

    def esc(self, *words, env=None):
        """Run the `esc` command to its end; a Problem with its words if it fails."""
        done = subprocess.run(
            [str(self.program("esc")), *words],
            cwd=self.root,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise Problem(f"`esc {' '.join(words)}` failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def env(self):
        """What `.local/env` holds: enough to use the stack from outside, and no more."""
        return {
            "ESC_URL": f"http://127.0.0.1:{self.ports['ingress']}",
            "ESC_TOKEN": self.credentials.tokens["operator"],
            "ESC_NATS_URL": self.nats_url("publisher"),
        }

    def operator_env(self):
        """The keys to everything, for who looks behind the API: `esc doctor`, `esc migrate`, `esc dev`."""
        return {
            **self.env(),
            "ESC_NATS_URL": self.nats_url("operator"),
            "ESC_DATABASE_URL": self.database_url(OWNER),
            "ESC_REDIS_URL": self.redis_url(),
        }

    def write_env(self):
        """Write `.local/env` and `.local/env.operator`, to be sourced by a shell: addresses, keys, and where `esc` is."""
        programs = shlex.quote(str(self.program("esc").parent))
        path = f'case ":$PATH:" in *:{programs}:*) ;; *) export PATH={programs}:"$PATH" ;; esac\n'
        for name, told in (("env", self.env()), ("env.operator", self.operator_env())):
            exports = "".join(f"export {key}={shlex.quote(told[key])}\n" for key in told)
            write_private(self.state / name, exports + path)

    def nats_url(self, user):
        """NATS as this user."""
        at = f"127.0.0.1:{self.ports['nats']}"
        return self.credentials.nats_url(user, at) if self.credentials else f"nats://{at}"

    def database_url(self, name):
        """The product's database as this role; in an open stack, whatever the superuser has."""
        at = f"127.0.0.1:{self.ports['postgres']}"
        return self.credentials.database_url(name, at) if self.credentials else f"postgres://postgres@{at}/postgres"

    def redis_url(self):
        """Valkey."""
        at = f"127.0.0.1:{self.ports['valkey']}"
        return self.credentials.redis_url(at) if self.credentials else f"redis://{at}/0"

    # Helpers.

    def _launch(self, service, env=None):
        service.launch(self.program(service.service), {**self._told(service), **(env or {})}, self.root)

    def _told(self, service):
        return {**environment(service.service, service.port, self), **self.settings}

    def _extra_instances(self):
        """The instances after the first of each service, from the records that `spawn` left."""
        for record in sorted((self.state / "run").glob("*.json")):
            name, _, number = record.stem.rpartition("-")
            if name in SERVICES and number.isdigit():
                service = Service(name, 0, self.state, int(number))
                service.port = service.process.port or 0
                yield record.stem, service

    @staticmethod
    def _check_port(thing):
        running = thing.process.port
        if running not in (None, thing.port):
            name = thing.process.name
            advice = f"run infra/down first, or set {variable(name)} as it was"
            raise Problem(f"{name} runs on port {running}, not {thing.port}: {advice}.")


def _profile():
    return os.environ.get("ESC_PROFILE") or "dev"
