"""Which code and which libraries a run was made with."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

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


def installed_packages() -> str:
    """Every installed distribution as name==version, a line each."""
    found = {(d.metadata["Name"] or "").lower(): d.version for d in distributions()}
    return "".join(f"{name}=={number}\n" for name, number in sorted(found.items()) if name)
