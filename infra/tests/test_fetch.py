"""What is fetched is there whole or not at all."""

import tempfile
import unittest
from pathlib import Path

from local import Problem, fetch


class Whole(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = Path(folder.name) / "parts" / "thing-1.0"

    def beside(self):
        return [path.name for path in self.home.parent.iterdir()]

    def test_what_is_fetched_is_in_its_place_at_the_end(self):
        with fetch.whole(self.home) as fresh:
            (fresh / "program").write_text("it")
            self.assertFalse(self.home.exists())
        self.assertEqual((self.home / "program").read_text(), "it")
        self.assertEqual(self.beside(), ["thing-1.0"])

    def test_what_goes_wrong_leaves_nothing(self):
        with self.assertRaisesRegex(Problem, "no line"), fetch.whole(self.home) as fresh:
            (fresh / "half").write_text("of it")
            raise Problem("no line")
        self.assertEqual(self.beside(), [])

    def test_whoever_was_first_is_not_disturbed(self):
        with fetch.whole(self.home) as fresh:
            (fresh / "program").write_text("ours")
            self.home.mkdir()
            (self.home / "program").write_text("theirs")
        self.assertEqual((self.home / "program").read_text(), "theirs")
        self.assertEqual(self.beside(), ["thing-1.0"])


class Pip(unittest.TestCase):
    def test_why_it_could_not_is_said(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(Problem, "could not install no such name. It said: "):
            fetch.pip_install(["no such name"], Path(folder) / "target", Path(folder))


if __name__ == "__main__":
    unittest.main()
