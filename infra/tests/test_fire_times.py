"""The table of fire times that the engine is tested against is what zoneinfo says."""

import importlib.util
import json
import os
import unittest
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

FOLDER = Path(__file__).resolve().parent.parent.parent / "shared/engine/tests/cron"


def script():
    spec = importlib.util.spec_from_file_location("fire_times", FOLDER / "fire_times.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FireTimes(unittest.TestCase):
    def setUp(self):
        try:
            ZoneInfo("Australia/Lord_Howe")
        except ZoneInfoNotFoundError:
            self.skipTest("this machine has no time zones")

    def test_the_table_is_what_the_script_makes(self):
        rows = json.loads((FOLDER / "fire_times.json").read_text())
        fire_times = script()
        everything = "ESC_TEST_LONG" in os.environ
        chosen = rows if everything else [each for each in rows if each["pattern"] == "30 1 * * *"][::4]
        for each in chosen:
            with self.subTest(zone=each["zone"], pattern=each["pattern"], dst=each["dst"]):
                self.assertEqual(fire_times.row(each["pattern"], each["zone"], each["dst"]), each)


if __name__ == "__main__":
    unittest.main()
