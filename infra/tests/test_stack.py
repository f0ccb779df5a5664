"""The services' side of the stack, with small stand-in programs that answer as a service does."""

import os
import socket
import stat
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from local import health
from local.problem import Problem
from local.settings import SERVICES, Ports
from local.stack import Stack

from .own import in_time

_STAND_IN = """#!{python}
import json, os, signal, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({{"version": "0.1.0", "colour": os.environ.get("ESC_COLOUR")}}).encode())
    def log_message(self, *_):
        pass

def end(*_):
    with open({ended!r}, "a") as file:
        print(os.path.basename(sys.argv[0]), file=file)
    sys.exit()

signal.signal(signal.SIGTERM, end)
host, port = os.environ["ESC_LISTEN"].split(":")
HTTPServer((host, int(port)), Answers).serve_forever()
"""


class Services(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.ended = self.root / "ended"
        programs = self.root / "target" / "debug"
        programs.mkdir(parents=True)
        for name in SERVICES:
            self.write(programs / name, _STAND_IN.format(python=sys.executable, ended=str(self.ended)))
        self.environ = mock.patch.dict(os.environ)
        self.environ.start()
        self.addCleanup(self.environ.stop)
        for name in ("CARGO_TARGET_DIR", "ESC_PROFILE"):
            os.environ.pop(name, None)
        self.stack = Stack(self.root, Ports.free())
        self.addCleanup(self.stack.stop)

    def write(self, program, text):
        program.write_text(text)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def pids(self):
        return {name: service.process.pid for name, service in self.stack.services.items()}

    def test_they_start_once_and_stop_with_the_door_first(self):
        self.stack.start_services()
        before = self.pids()
        self.assertNotIn(None, before.values())
        self.stack.start_services()
        self.assertEqual(self.pids(), before)
        self.stack.stop()
        self.assertEqual(set(self.pids().values()), {None})
        ended = self.ended.read_text().split()
        self.assertEqual((ended[0], sorted(ended)), ("ingress", sorted(SERVICES)))

    def test_status_tells_what_is_down_and_what_is_old(self):
        self.stack.start_services()
        self.stack.kill("planner")
        os.utime(self.stack.program("observer"))
        wanted = {
            "planner": ("-", "no", "-"),
            "ingress": (str(self.pids()["ingress"]), "yes", "0.1.0"),
            "observer": (str(self.pids()["observer"]), "yes", "0.1.0 (an older build)"),
            "nats": ("-", "no", "-"),
        }

        def status():
            return {row[0]: row[2:] for row in Stack(self.root, self.stack.ports).status() if row[0] in wanted}

        # One look waits for two seconds only.
        self.assertEqual(in_time(status, wanted.__eq__), wanted)

    def test_only_the_dead_and_the_rebuilt_are_started_again(self):
        self.stack.start_services()
        before = self.pids()
        self.stack.kill("planner")
        os.utime(self.stack.program("observer"))
        self.stack.start_services()
        after = self.pids()
        self.assertEqual({name for name in SERVICES if before[name] != after[name]}, {"planner", "observer"})

    def test_other_settings_restart_and_stay(self):
        self.stack.start_services()
        before = self.pids()
        self.stack.start_services(env={"ESC_COLOUR": "blue"})
        after = self.pids()
        self.assertFalse(set(before.values()) & set(after.values()))
        self.stack.restart("planner")
        self.assertIn('"blue"', health.get(self.stack.ports["planner"], "/healthz", seconds=60)[1])

    def test_a_changed_tool_or_key_restarts_who_reads_it_at_its_start(self):
        tools = self.root / "infra" / "agents" / "tools"
        tools.mkdir(parents=True)
        self.stack.start_services()
        before = self.pids()
        (tools / "mine.yaml").write_text("name: mine\n")
        self.stack.start_services()
        after = self.pids()
        self.assertEqual({name for name in SERVICES if before[name] != after[name]}, {"planner", "tool-executor"})
        os.environ["OPENAI_API_KEY"] = "new"
        self.stack.start_services()
        self.assertEqual({name for name in SERVICES if after[name] != self.pids()[name]}, {"planner"})

    def test_a_second_instance_is_known_to_later_commands(self):
        second = self.stack.spawn("planner", instance=2, env={"ESC_COLOUR": "red"})
        self.assertIn('"red"', health.get(second.port, "/healthz", seconds=60)[1])
        later = Stack(self.root, self.stack.ports)
        self.assertEqual(later.services["planner-2"].process.pid, second.process.pid)
        self.assertEqual(later.services["planner-2"].port, second.port)
        later.restart("planner-2")
        later.stop()
        self.assertIsNone(second.process.pid)

    def test_one_that_cannot_start_shows_its_last_words(self):
        self.write(self.stack.program("observer"), "#!/bin/sh\necho 'no such stream: SIGNALS' >&2\nexit 1\n")
        with self.assertRaisesRegex(Problem, "observer ended while starting(.|\n)*no such stream: SIGNALS"):
            self.stack.start_services()

    def test_a_taken_port_is_named_before_anything_starts_on_it(self):
        with socket.create_server(("127.0.0.1", self.stack.ports["ingress"])):
            with self.assertRaisesRegex(Problem, "meant for ingress, is in use.*ESC_API_PORT"):
                self.stack.start_services()

    def test_moved_ports_are_not_mixed_with_running_services(self):
        self.stack.start_services()
        with self.assertRaisesRegex(Problem, "runs on port .*infra/down first"):
            Stack(self.root, Ports.free()).start_services()

    def test_wipe_keeps_nothing_but_the_parts(self):
        self.stack.write_env()
        (self.stack.state / "parts").mkdir()
        self.stack.wipe()
        self.assertEqual([path.name for path in self.stack.state.iterdir()], ["parts"])


if __name__ == "__main__":
    unittest.main()
