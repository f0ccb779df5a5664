"""What tests have for themselves."""

import time
import unittest
from contextlib import ExitStack
from pathlib import Path

import local

ROOT = Path(__file__).resolve().parents[2]


def own_stack(tests, kind):
    """A stack for a class of tests, not started; it is gone when they are over. Where `esc` is not built they are skipped."""
    held = ExitStack()
    tests.addClassCleanup(held.close)
    stack = held.enter_context(local.own_stack(ROOT, kind, for_tests=True))
    if not stack.program("esc").exists():
        raise unittest.SkipTest("`esc` is not built")
    return stack


def in_time(look, is_wanted, seconds=60):
    """What `look` finds, once that is as wanted, or was not for so long."""
    deadline = time.monotonic() + seconds
    while not is_wanted(found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
