"""AgentDojo from PyPI, without the clients of model providers that it asks for: nothing of it calls a model here."""

import sys
import types

from local import fetch, say

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
    if not folder.exists():
        say("Getting AgentDojo ...")
        with fetch.whole(folder) as fresh:
            fetch.pip_install(PACKAGES, fresh, folder.parent, "--no-deps")
    sys.path.insert(0, str(folder))
    _leave_out_models(folder)
    from agentdojo.task_suite.load_suites import get_suites

    return get_suites(VERSION)


def _leave_out_models(folder):
    """Its package of pipelines imports every provider's client at once; of it only two small modules are needed."""
    pipelines = types.ModuleType("agentdojo.agent_pipeline")
    pipelines.__path__ = [str(folder / "agentdojo" / "agent_pipeline")]
    ground_truth = types.ModuleType("agentdojo.agent_pipeline.ground_truth_pipeline")
    ground_truth.GroundTruthPipeline = object
    for module in (pipelines, ground_truth):
        sys.modules[module.__name__] = module
