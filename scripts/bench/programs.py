"""The side of a benchmark that starts programs, one process at a time, and reads what they found."""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from environments import DEFAULT_FOLDER, PEERS, prepare
from job import Job

HERE = Path(__file__).resolve().parent
OURS = "tft-exp"
# glibc keeps blocks of this many bytes and less instead of giving them back to the system after each use.
ALLOCATOR = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296"

# What of a finding says how a program ran, in a benchmark's JSON and for `print_differences`.
ABOUT = ("version", "torch", "threads", "allocator", "training_windows", "differences")


@dataclass(frozen=True)
class Program:
    """What is started: a worker in an environment, with variables and, of ours, overrides."""

    name: str
    python: Path
    worker: str
    ours: bool = False
    overrides: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, job: Job) -> dict[str, Any]:
        """Do one job in a fresh process. All findings in one dictionary; those of a race that have a step as the list `curve`.

        Raises RuntimeError with the end of what it printed where it fails.
        """
        threads = str(job.threads)
        environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TQDM_DISABLE": "1"} | self.variables
        if self.ours:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent.parent), os.environ.get("PYTHONPATH")]))
        with tempfile.TemporaryDirectory() as folder:
            job = replace(job, overrides=self.overrides, started=time.time())
            command = [str(self.python), "-W", "ignore", str(HERE / self.worker), job.to_json()]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{self.name} failed ({done.returncode}):\n{(done.stdout + done.stderr)[-4000:]}")
        found: dict[str, Any] = {"curve": []}
        for line in done.stdout.splitlines():
            if line.startswith("RESULT "):
                finding = json.loads(line.removeprefix("RESULT "))
                if "step" in finding:
                    found["curve"].append(finding)
                else:
                    found |= finding
        return found


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that both benchmarks share."""
    parser.add_argument("--environments", type=Path, default=DEFAULT_FOLDER, help="folder of the peers' virtual environments")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument(
        "--ours",
        action="append",
        metavar="NAME: OVERRIDE ...",
        help="a variant of ours: a name, overrides of tft-exp train, and env:NAME=VALUE for its environment; repeatable",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lookback", type=int, default=60)
    parser.add_argument("--horizon", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--continuous", type=int, default=None, help="the peers' hidden_continuous_size; without it the hidden size")
    parser.add_argument("--json", type=Path, default=None, help="where the figures go")
    parser.add_argument("--png", type=Path, default=None, help="where the picture goes")


def shapes(options: argparse.Namespace) -> dict[str, Any]:
    """Fields of a Job that the shared options set."""
    return {name: getattr(options, name) for name in ("threads", "lookback", "horizon", "batch", "continuous")}


def chosen_programs(options: argparse.Namespace) -> list[Program]:
    """Our variants first, then the peers; installs what is not there."""
    programs = [our_variant(text) for text in options.ours or [OURS]]
    for peer in options.peers:
        programs.append(Program(peer, prepare(peer, options.environments), f"worker_{peer.replace('-', '_')}.py"))
    if len({program.name for program in programs}) < len(programs):
        raise SystemExit("two variants have one name")
    return programs


def our_variant(text: str) -> Program:
    name, _, rest = text.partition(":")
    words = rest.split()
    variables = dict(word.removeprefix("env:").split("=", 1) for word in words if word.startswith("env:"))
    overrides = [word for word in words if not word.startswith("env:")]
    return Program(name.strip(), Path(sys.executable), "worker_tft_exp.py", True, overrides, variables)


def with_allocator(program: Program) -> Program:
    return replace(program, name=f"{program.name} + allocator", variables=program.variables | {"GLIBC_TUNABLES": ALLOCATOR})


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """Median [least, most]."""
    return f"{statistics.median(values):{form}} [{min(values):{form}}, {max(values):{form}}]" if values else "-"


def print_differences(records: dict[str, dict[str, Any]]) -> None:
    """Versions, and what each program does not do the same; `records` holds one finding a program."""
    told: list[list[str]] = []
    for name, found in records.items():
        about = [
            f"{found['version']}, torch {found['torch']}, {found['threads']} threads",
            f"{found['training_windows']:,} training windows",
        ]
        print(f"{name}: {', '.join(filter(None, [*about, found['allocator']]))}")
        for difference in found["differences"] if found["differences"] not in told else []:
            print(f"  {difference}")
        told.append(found["differences"])


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rounded(content), separators=(",", ":")) + "\n")


def rounded(content: Any) -> Any:
    """Figures to five digits, so that the file stays small; what is infinite, which JSON does not know, as null."""
    if isinstance(content, float):
        return float(f"{content:.5g}") if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: rounded(value) for key, value in content.items()}
    return [rounded(value) for value in content] if isinstance(content, list | tuple) else content
