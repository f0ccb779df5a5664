"""AgentDojo from PyPI, without the clients of model providers that it asks for: nothing of it calls a model here."""

import os
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

from local import Problem, say

# What its suites, environments and functions need, with exact versions.
PACKAGES = [
    "agentdojo==0.1.35",
    "annotated-types==0.7.0",
    "deepdiff==8.6.1",
    "dnspython==2.7.0",
    "docstring-parser==0.17.0",
    "email-validator==2.2.0",
    "idna==3.10",
    "orderly-set==5.5.0",
    "pydantic==2.11.7",
    "pydantic-core==2.33.2",
    "pyyaml==6.0.2",
    "typing-extensions==4.14.1",
    "typing-inspection==0.4.1",
]
# The benchmark's newest suites.
VERSION = "v1.2.2"


def suites(root):
    """The suites by name; installs the packages under `.local` first, if they are not there."""
    folder = root / ".local" / "agentdojo" / f"{sys.version_info.major}.{sys.version_info.minor}"
    if not (folder / "agentdojo").is_dir():
        _install(folder)
    sys.path.insert(0, str(folder))
    _leave_out_models(folder)
    from agentdojo.task_suite.load_suites import get_suites

    return get_suites(VERSION)


def _install(folder):
    say("Getting AgentDojo ...")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, then moved there, so that it is there whole or not at all.
    fresh = Path(tempfile.mkdtemp(prefix="fresh.", dir=folder.parent))
    words = ["install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", "--only-binary=:all:"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words, f"--target={fresh}", *PACKAGES],
            capture_output=True,
            text=True,
            env={**os.environ, "PIP_ROOT_USER_ACTION": "ignore"},
        )
        if done.returncode != 0:
            raise Problem("pip could not install AgentDojo: " + (done.stderr.strip().splitlines() or ["no words"])[-1])
        if not folder.exists():
            fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _leave_out_models(folder):
    """Its package of pipelines imports every provider's client at once; of it only two small modules are needed."""
    pipelines = types.ModuleType("agentdojo.agent_pipeline")
    pipelines.__path__ = [str(folder / "agentdojo" / "agent_pipeline")]
    ground_truth = types.ModuleType("agentdojo.agent_pipeline.ground_truth_pipeline")
    ground_truth.GroundTruthPipeline = object
    for module in (pipelines, ground_truth):
        sys.modules[module.__name__] = module
