"""Faults under load: what breaks is the plan's to say, what must hold all the same is the check's."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import unittest
from pathlib import Path

from local.faults import plan
from local.proxy import Proxies
from local.settings import PARTS, SERVICES

ROOT = Path(__file__).resolve().parent.parent.parent


class Plan(unittest.TestCase):
    def test_a_seed_gives_the_same_plan_again_and_another_seed_another(self):
        self.assertEqual(plan(7, 120), plan(7, 120))
        self.assertNotEqual(plan(7, 120), plan(8, 120))

    def test_everything_breaks_once_before_anything_breaks_twice(self):
        kinds = [(kind, subject) for _, kind, subject, _ in plan(1, 120)]
        wanted = {("kill", name) for name in SERVICES} | {(kind, name) for kind in ("restart", "cut") for name in PARTS}
        wanted |= {("flush", "valkey"), ("delete", "EVENTS")}
        self.assertEqual(set(kinds[: len(wanted)]), wanted)
        self.assertGreater(len(kinds), len(wanted))

    def test_faults_come_in_order_and_in_time(self):
        times = [at for at, *_ in plan(3, 60)]
        self.assertEqual(times, sorted(times))
        self.assertLess(times[-1], 60)


class CutConnections(unittest.TestCase):
    def setUp(self):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.server.close)
        threading.Thread(target=self.echo, daemon=True).start()
        self.proxies = Proxies({"echo": self.server.getsockname()[1]})
        self.proxies.start()
        self.addCleanup(self.proxies.stop)

    def echo(self):
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    @staticmethod
    def answer(connection):
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
            except OSError:
                pass

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.proxies.ports["echo"]), timeout=60)
        self.addCleanup(connection.close)
        self.assertEqual(self.ask(connection, b"hello"), b"hello")
        return connection

    @staticmethod
    def ask(connection, data):
        try:
            connection.sendall(data)
            answer = b""
            while len(answer) < len(data):
                piece = connection.recv(1 << 16)
                if not piece:
                    break
                answer += piece
            return answer
        except OSError:
            return b""

    def test_much_passes_through_unchanged(self):
        data = random.Random(1).randbytes(1 << 20)
        connection = self.connect()
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        with connection.makefile("rb") as answer:
            self.assertEqual(answer.read(len(data)), data)
        sender.join()

    def test_the_share_that_is_cut_breaks_and_the_rest_goes_on(self):
        connections = [self.connect() for _ in range(10)]
        self.assertEqual(self.proxies.cut("echo", 0.3, 1), 3)
        answers = [self.ask(connection, b"again") for connection in connections]
        self.assertEqual(sorted(answers), [b""] * 3 + [b"again"] * 7)
        self.assertEqual(self.proxies.cut("echo", 1.0, 1), 7)
        self.connect()

    def test_nobody_behind_it_looks_like_nobody_at_all(self):
        # Closing alone would leave it to the thread that waits in `accept`.
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        with socket.create_connection(("127.0.0.1", self.proxies.ports["echo"]), timeout=60) as connection:
            self.assertEqual(self.ask(connection, b"hello"), b"")


class UnderFaults(unittest.TestCase):
    def test_every_promise_is_kept(self):
        """A short form with a fixed seed; a long one with another seed each time when `ESC_TEST_LONG` is set."""
        if os.environ.get("ESC_TEST_LONG"):
            length, seed = "5", str(random.randrange(1 << 31))
        else:
            length, seed = "0.5", "1"
        words = [sys.executable, str(ROOT / "loadtest" / "faults"), "--minutes", length, "--seed", seed]
        env = {"ESC_PROFILE": "dev", **os.environ}
        done = subprocess.run(words + ["--drivers", "16", "--settle", "400", "--json"], env=env, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, f"seed {seed}:\n{done.stdout[-20000:]}\n{done.stderr[-4000:]}")
        figures = json.loads(done.stdout.splitlines()[-1])
        self.assertGreater(figures["ended"], 10, figures)


if __name__ == "__main__":
    unittest.main()
