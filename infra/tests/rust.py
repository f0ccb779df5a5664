"""Tests in Rust that want something from outside, which a test here brings."""

import json
import os
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = ("ESC_TEST_NATS_URL", "ESC_TEST_DATABASE_URL", "ESC_TEST_REDIS_URL")

needs_parts = unittest.skipUnless(
    all(name in os.environ for name in PARTS), "the parts are not up: infra/test brings them"
)


def built(crate, *words):
    """What cargo builds, or has built for the other tests: the program of a crate."""
    features = ["--features", os.environ["ESC_FEATURES"]] if os.environ.get("ESC_FEATURES") else []
    words = ["cargo", words[0], "--quiet", "--workspace", *features, *words[1:], "--message-format=json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr[-4000:])
    made = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    ours = [one for one in made if one.get("executable") and f"/{crate}/" in one["manifest_path"]]
    return next(one["executable"] for one in ours if one["target"]["name"] == words[-2])


def passes(case, crate, test, **variables):
    """Run one integration test of a crate, which has to be there and to pass."""
    words = [built(crate, "test", "--no-run", "--test", "it"), "--exact", test]
    env = {**os.environ, **variables}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    case.assertEqual(done.returncode, 0, done.stdout[-8000:] + done.stderr[-2000:])
    case.assertIn("1 passed", done.stdout)
