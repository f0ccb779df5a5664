"""Getting what checks Kubernetes manifests: the schemas of its API, and a reader of YAML. Pinned, out of one PyPI wheel and its needs."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .parts import pip_command
from .problem import Problem, say

VERSION = "1.37.0"


def get(folder):
    """The folder to import `kubernetes_validate` and `yaml` from; fetched into `folder` the first time: whole or not at all."""
    home = Path(folder) / f"kubernetes-validate-{VERSION}"
    if not home.exists():
        say("Getting the schemas of Kubernetes (once) ...")
        home.parent.mkdir(parents=True, exist_ok=True)
        # Beside its place, then moved there: another command may be fetching the same.
        fresh = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
        try:
            words = pip_command(home.parent) + ["install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]
            words += ["--only-binary=:all:", f"--target={fresh}", f"kubernetes-validate=={VERSION}"]
            env = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
            done = subprocess.run(words, capture_output=True, text=True, env=env)
            if done.returncode != 0:
                said = (done.stderr.strip() or "nothing").splitlines()[-1]
                raise Problem(f"The test of the manifests needs kubernetes-validate, which could not be fetched. It said: {said}")
            if not home.exists():
                fresh.replace(home)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return home


def load(folder):
    """The modules `kubernetes_validate` and `yaml`."""
    home = str(get(folder))
    if home not in sys.path:
        sys.path.insert(0, home)
    import kubernetes_validate
    import yaml

    return kubernetes_validate, yaml
