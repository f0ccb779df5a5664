"""Background processes that outlive the command which started them, known by a record on disk.

A pid alone may by now belong to somebody else, so the record also holds when the process started; a pid whose start
differs is never signalled.
"""

import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

from .problem import Problem

_LOG_LIMIT = 32 << 20
# How children of ours ended, by pid.
_ended = {}


class Process:
    """One background process of the stack: start it, ask after it, stop it."""

    def __init__(self, name, state):
        self.name = name
        self.record = Path(state) / "run" / f"{name}.json"
        self.log = Path(state) / "log" / f"{name}.log"

    @property
    def pid(self):
        """Its pid while it runs, else None."""
        record = self._read()
        found = record and identity(record["pid"])
        return record["pid"] if found and found == record["identity"] else None

    @property
    def exit_code(self):
        """How it ended, if it did, and was started by this very command: negative for the signal that ended it. Else None."""
        record = self._read()
        return None if record is None or self.pid is not None else _ended.get(record["pid"])

    @property
    def program(self):
        """The program that it runs, else None."""
        return self._read()["argv"][0] if self.pid is not None else None

    @property
    def port(self):
        """The port that it was started on, else None."""
        return self._read()["port"] if self.pid is not None else None

    @property
    def outdated(self):
        """Whether it runs and its program was rebuilt after it started."""
        return self.pid is not None and _mtime(self.program) != self._read()["built"]

    def was_told(self, settings):
        """Whether it runs and was started with these settings."""
        return self.pid is not None and self._read()["settings"] == _digest(settings)

    def start(self, argv, port=None, env=None, settings=None, cwd=None, account=None):
        """Start it in a session of its own, its output appended to its log. `settings`: what of `env` to remember it
        by; `account`: whom to run it as, if not us."""
        for folder in (self.record.parent, self.log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT:
            self.log.replace(self.log.with_suffix(".log.1"))
        argv = [str(word) for word in argv]
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_user(account),
            )
        # Reaped by `identity`; the object would only warn that its process goes on.
        child.returncode = 0
        record = {
            "pid": child.pid,
            "identity": identity(child.pid),
            "argv": argv,
            "port": port,
            "built": _mtime(argv[0]),
            "settings": _digest(settings),
        }
        self.record.write_text(json.dumps(record))

    def wait_ready(self, ready, seconds):
        """Wait until `ready()` holds; a Problem with the end of the log if the process dies or the time is up."""
        deadline = time.monotonic() + seconds
        while not ready():
            if self.pid is None:
                raise Problem(f"{self.name} ended while starting. The end of {self.log}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise Problem(f"{self.name} isn't ready after {seconds} s. The end of {self.log}:\n{self.tail()}")
            time.sleep(0.02)

    def send(self, number):
        """Send it a signal, if it runs."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, number)

    def wait_gone(self, seconds):
        """Wait for its end; False if it is still there when the time is up."""
        deadline = time.monotonic() + seconds
        while self.pid is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def stop(self, number=signal.SIGTERM, seconds=10):
        """Ask it to end, insist after `seconds`, and leave none of its session behind."""
        self.send(number)
        if not self.wait_gone(seconds):
            self.send(signal.SIGKILL)
            self.wait_gone(60)
        self.forget()

    def forget(self):
        """End what a dead process left in its session, and drop the record."""
        record = self._read()
        if record and identity(record["pid"]) is None:
            for pid in _session(record["pid"]):
                _kill(pid)
        self.record.unlink(missing_ok=True)

    def tail(self, lines=20):
        """The last lines of its log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"

    def _read(self):
        try:
            return json.loads(self.record.read_text())
        except (OSError, ValueError):
            return None


def as_user(account):
    """The `subprocess` arguments that run a child as `account` (a `pwd` entry), or as ourselves for None."""
    if account is None:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def identity(pid):
    """What tells this process from a later one with the same pid; None when there is none (or only its remains)."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _ended[pid] = os.waitstatus_to_exitcode(status)
    except OSError:  # not a child of ours
        pass
    stat = _stat(pid)
    if stat is not None:
        return None if stat[0] == "Z" else f"{_boot()}:{stat[19]}"
    if os.path.exists("/proc/self/stat"):
        return None
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return shown or None


def _stat(pid):
    """The fields of /proc/PID/stat from the state on (the name before it may hold spaces)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _boot():
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _session(leader):
    """The processes of a session whose leader is gone."""
    for folder in Path("/proc").glob("[0-9]*"):
        stat = _stat(folder.name)
        if stat and int(stat[3]) == leader and stat[0] != "Z":
            yield int(folder.name)


def _kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _digest(settings):
    # Not the settings themselves: they hold secrets.
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _mtime(path):
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None
