"""Which code and which libraries a run was made with."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

from omegaconf import OmegaConf

from tft_exp.config import Config, SweepConfig, TrackingConfig

PACKAGE = Path(__file__).resolve().parent.parent
LIBRARIES = ("torch", "mlflow", "hydra-core", "pyarrow", "pandas", "numpy")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(PACKAGE), *arguments], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def code_state() -> tuple[dict[str, str], str]:
    """Tags `git_commit` and `git_dirty`, and the uncommitted difference; none of them where the package is not in its
    own git checkout (MLflow records the commit alone, and so calls a changed tree by the name of an unchanged one)."""
    top = _git("rev-parse", "--show-toplevel")
    # An installed package may lie inside somebody else's repository, whose commit says nothing about this code.
    if top is None or Path(top.strip()) != PACKAGE.parent:
        return {}, ""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {}, ""
    status = _git("status", "--porcelain") or ""
    diff = _git("diff", "HEAD") or ""
    # The second name is the one that MLflow's own pages show.
    commits = {"git_commit": commit.strip(), "mlflow.source.git.commit": commit.strip()}
    return {**commits, "git_dirty": str(bool(status.strip())).lower()}, diff


def version_tags() -> dict[str, str]:
    """Versions of this program, of Python and of the libraries that decide a run's figures, as tags."""
    try:
        own = version("tft-exp")
    except PackageNotFoundError:
        own = "not installed"
    libraries = {f"version.{name}": version(name) for name in LIBRARIES}
    source = {"mlflow.source.name": "tft-exp train", "mlflow.source.type": "LOCAL"}
    return {"version.tft-exp": own, "version.python": platform.python_version(), **libraries, **source}


def run_fingerprint(config: Config, source_fingerprint: str) -> str:
    """16 hex digits over all that decides a run's result: its configuration, but for where it is recorded and where its data
    lies, the data's bytes, this package's code and torch's version."""
    alike = replace(config, tracking=TrackingConfig(), sweep=SweepConfig(), data=config.data.placeless)
    parts = [OmegaConf.to_yaml(OmegaConf.structured(alike)), source_fingerprint, code_fingerprint(), version("torch")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@cache
def code_fingerprint() -> str:
    """16 hex digits over the package's Python files, whether they are committed, changed or installed."""
    code = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        code.update(path.read_bytes())
    return code.hexdigest()[:16]


def installed_packages() -> str:
    """Every installed distribution as name==version, a line each."""
    found = {(d.metadata["Name"] or "").lower(): d.version for d in distributions()}
    return "".join(f"{name}=={number}\n" for name, number in sorted(found.items()) if name)
