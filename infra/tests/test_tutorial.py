"""The README's first agent and the tutorial, command by command, as a newcomer types them; and that what documents name is there."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from local.settings import Ports, is_free

ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("infra", "loadtest")
# What a document names as `infra/up`, `loadtest/run agent --seconds 10`, `infra/down [--wipe]`.
_NAMED = re.compile(r"`((?:%s)/[a-z][a-z-]*)((?: [^`]*)?)`" % "|".join(_FOLDERS))


def commands(document):
    """What a document's reader types, block by block."""
    return re.findall(r"^```sh\n(.*?)^```", (ROOT / document).read_text(), re.M | re.S)


@unittest.skipUnless(shutil.which("curl"), "the documents use curl")
class Typed(unittest.TestCase):
    def test_the_first_agent_of_the_readme_answers_its_event(self):
        said = self.played([*commands("README.md"), "infra/status", "esc runs", "infra/down --wipe"], ["clerk.yaml"])
        for expected in (r'You asked: Are you open\? The answer is yes', r"● completed", r'"duplicate": ?false', "is deleted"):
            self.assertRegex(said, expected)

    def test_every_command_of_the_tutorial_does_what_it_says(self):
        typed = commands("TUTORIAL.md")
        self.assertGreater(len(typed), 8)
        said = self.played(typed, ["my-agents"])
        for expected in (r"starts +reviewer", r"done +review\.post", r"● completed", r"(?s)run\.completed.*github\.pull_request\.opened"):
            self.assertRegex(said, expected)

    def played(self, blocks, files):
        """What the commands say, typed one after the other into one shell, over a stack, state and `files` of their own."""
        home = Path(tempfile.mkdtemp(prefix="escapement-tutorial-"))
        home.chmod(0o755)
        self.addCleanup(shutil.rmtree, home, ignore_errors=True)
        script = "\n".join(["set -euo pipefail", "trap 'infra/down --wipe >/dev/null 2>&1 || true' EXIT", *blocks])
        script = script.replace("$PWD/", "").replace(". .local/", f". {home}/")
        for name in files:
            script = script.replace(name, f"{home}/{name}")
        env = {**os.environ, **_ports(), "ESC_LOCAL": str(home), "ESC_BUILD_TESTS": "1"}
        # The programs as the tests before this have built them.
        env["ESC_PROFILE"] = "dev"
        played = subprocess.run(["bash", "-c", script], cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
        said = played.stdout + played.stderr
        self.assertEqual(played.returncode, 0, said[-4000:])
        return said


class Named(unittest.TestCase):
    def test_the_commands_that_documents_name_are_there_and_know_their_options(self):
        helps, named = {}, 0
        for document in _documents():
            for program, words in _NAMED.findall(document.read_text()):
                if not (ROOT / program).is_file():
                    self.assertTrue((ROOT / program).is_dir(), f"{document}: {program}")
                    continue
                named += 1
                if program not in helps:
                    shown = subprocess.run([ROOT / program, "--help"], capture_output=True, text=True, timeout=60)
                    self.assertEqual(shown.returncode, 0, f"{program} --help: {shown.stderr}")
                    helps[program] = shown.stdout
                for option in re.findall(r"--[a-z][a-z-]*", words):
                    self.assertIn(option, helps[program], f"{document}: {program} {option}")
        self.assertGreater(named, 30)

    def test_links_of_documents_lead_somewhere(self):
        for document in _documents():
            text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
            for target, _, section in re.findall(r"\]\(([\w./-]*)(#([\w-]+))?\)", text):
                file = (document.parent / target) if target else document
                self.assertTrue(file.exists(), f"{document}: {target}")
                if section:
                    self.assertIn(section, _sections(file), f"{document}: {target}#{section}")


def _documents():
    skipped = {"target", "node_modules", "vendor", ".local", ".git"}
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(set(folders) - skipped)
        yield from (Path(folder) / name for name in sorted(files) if name.endswith(".md"))


def _sections(document):
    """What the headings of a document are called in links, as forges do it."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _ports():
    """Settings that keep this stack out of the way of others: the services need ports in a row."""
    free = Ports.free().numbers
    base = next(base for base in range(23000, 60000, 50) if all(is_free(base + place) for place in range(8)))
    named = {"ESC_API_PORT": free["ingress"], "ESC_PORT_BASE": base}
    named |= {f"ESC_{name}_PORT": free[part] for name, part in (("NATS", "nats"), ("POSTGRES", "postgres"), ("REDIS", "valkey"))}
    return {name: str(port) for name, port in named.items()}


if __name__ == "__main__":
    unittest.main()
