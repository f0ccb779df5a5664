"""The probe drill: an executor that is killed around effects that may not be repeated."""

import os
import unittest
from pathlib import Path

from drills import ProbeDrill
from local import Ports, Stack

ROOT = Path(__file__).resolve().parents[2]


class ProbeDrillTest(unittest.TestCase):
    def test_no_effect_happens_twice_and_none_is_lost(self):
        Stack(ROOT, Ports.free()).build()
        told = ProbeDrill(ROOT, kills=200 if os.environ.get("ESC_TEST_LONG") else 12, seed=7).play()
        self.assertEqual(told["problems"], [], told)
        self.assertGreaterEqual(told["calls"], told["kills"])
        self.assertGreater(told["in_doubt"], 0, "no kill came at a bad moment: the drill shows nothing")
