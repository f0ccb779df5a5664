"""Background processes: a record is only believed if it is of the same process."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from local.problem import Problem
from local.process import Process, identity


class BackgroundProcess(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.state = Path(folder.name)
        self.process = Process("thing", self.state)
        self.addCleanup(self.process.stop, signal.SIGKILL)

    def start(self, code):
        self.process.start([sys.executable, "-c", code])

    def test_it_runs_until_stopped(self):
        self.start("import time; print('here', flush=True); time.sleep(60)")
        self.process.wait_ready(lambda: "here" in self.process.tail(), 60)
        pid = self.process.pid
        self.process.stop()
        self.assertIsNone(identity(pid))
        self.assertIsNone(self.process.pid)
        self.assertFalse(self.process.record.exists())

    def test_how_it_ended_is_known(self):
        self.start("raise SystemExit(3)")
        self.assertTrue(self.process.wait_gone(60))
        self.assertEqual(self.process.exit_code, 3)
        self.process.forget()
        self.start("import time; time.sleep(60)")
        self.assertIsNone(self.process.exit_code)
        self.process.send(signal.SIGKILL)
        self.assertTrue(self.process.wait_gone(60))
        self.assertEqual(self.process.exit_code, -signal.SIGKILL)

    def test_another_command_finds_it_by_its_record(self):
        self.start("import time; time.sleep(60)")
        self.assertEqual(Process("thing", self.state).pid, self.process.pid)

    def test_a_pid_that_now_belongs_to_another_is_left_alone(self):
        stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        self.addCleanup(stranger.wait)
        self.addCleanup(stranger.kill)
        self.process.record.parent.mkdir(parents=True)
        self.process.record.write_text(
            json.dumps({"pid": stranger.pid, "identity": "an earlier one", "argv": ["x"], "built": None})
        )
        self.assertIsNone(self.process.pid)
        self.process.stop(signal.SIGKILL)
        self.assertIsNone(stranger.poll())
        self.assertFalse(self.process.record.exists())

    def test_a_broken_record_means_not_running(self):
        self.process.record.parent.mkdir(parents=True)
        self.process.record.write_text("{")
        self.assertIsNone(self.process.pid)

    def test_one_that_ignores_the_request_is_killed(self):
        self.start("import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)")
        self.process.wait_ready(lambda: "deaf" in self.process.tail(), 60)
        pid = self.process.pid
        self.process.stop(seconds=0.1)
        self.assertIsNone(identity(pid))

    @unittest.skipUnless(os.path.exists("/proc/self/stat"), "sessions are looked up in /proc")
    def test_what_a_dead_one_left_behind_is_ended(self):
        self.start("import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True)")
        self.assertTrue(self.process.wait_gone(60))
        child = int(self.process.tail())
        left = Process("left", self.state)
        left.record.write_text(json.dumps({"pid": child, "identity": identity(child)}))
        self.assertEqual(left.pid, child)
        self.process.stop()
        self.assertTrue(left.wait_gone(60))

    def test_death_while_starting_shows_the_log(self):
        self.start("raise SystemExit('no such table')")
        with self.assertRaisesRegex(Problem, "thing ended while starting(.|\n)*no such table"):
            self.process.wait_ready(lambda: False, 60)

    def test_being_late_shows_the_log(self):
        self.start("import time; print('still at it', flush=True); time.sleep(60)")
        self.process.wait_ready(lambda: "still" in self.process.tail(), 60)
        with self.assertRaisesRegex(Problem, "isn't ready after 0.1 s(.|\n)*still at it"):
            self.process.wait_ready(lambda: False, 0.1)


if __name__ == "__main__":
    unittest.main()
