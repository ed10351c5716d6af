"""Jobs of a sweep, each in a fresh process: started, listened to, and what became of them. Imports neither torch nor MLflow."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from hydra.types import HydraContext, TaskFunction

from tft_exp.config import Config
from tft_exp.startup import process_context

# A job that is told to end sends what it has to MLflow first.
SECONDS_TO_END = 30.0


@dataclass(frozen=True)
class SweepJob:
    """One combination. `refused` says why the schema does not allow it; `done` is what a run of the same fingerprint came to before."""

    number: int
    label: str
    config: Config | None
    composed: Any  # Hydra's own configuration of the job
    refused: str = ""
    done: Ended | None = None


def objectives(summary: Mapping[str, float]) -> tuple[float, float] | None:
    """Peak memory in MiB and validation loss, for a sweeper that searches; None where one was not measured."""
    peak = summary.get("peak_allocated_mib", summary.get("peak_rss_mib"))
    return None if peak is None or "val_loss" not in summary else (peak, summary["val_loss"])


@dataclass(frozen=True)
class Ended:
    """What became of a job. `outcome`: finished, out_of_memory, failed, killed; or, of a job that was not started, skipped
    (refused by the schema), done (finished before), not started (after a failure, or Ctrl-C)."""

    number: int
    label: str
    outcome: str
    name: str = ""
    run_id: str | None = None
    reason: str = ""
    seconds: float = 0.0
    summary: Mapping[str, float] = field(default_factory=dict)
    phase: str | None = None

    @property
    def objectives(self) -> tuple[float, float] | None:
        """As `objectives`; None where the job did not finish."""
        return objectives(self.summary) if self.outcome in ("finished", "done") and self.phase is None else None


@dataclass(frozen=True)
class Prepared:
    """Of each configuration its finished run, None where there is none, and the machine's GPUs, as CUDA_VISIBLE_DEVICES names
    them."""

    finished: list[Ended | None]
    gpus: list[str]


@dataclass(frozen=True)
class Task:
    """What Hydra needs to run a job beside the job's configuration."""

    context: HydraContext
    function: TaskFunction


@dataclass(frozen=True)
class Place:
    """Where a job runs beside others: its slot of `slots`, and the GPU that it sees alone, as CUDA_VISIBLE_DEVICES names it."""

    slot: int = 0
    slots: int = 1
    gpu: str | None = None


class Listener(Protocol):
    """Is told what happens, to show it."""

    def started(self, job: SweepJob) -> None: ...
    def message(self, text: str) -> None: ...
    def epoch(self, text: str) -> None: ...
    def progress(self, job: SweepJob, fraction: float, state: str) -> None: ...
    def ended(self, ended: Ended) -> None: ...


@dataclass
class _Running:
    job: SweepJob
    place: Place
    process: BaseProcess
    connection: Connection
    began: float
    run_id: str | None = None
    name: str = ""
    report: Ended | None = None


def forkserver() -> BaseContext:
    """Processes that have torch, MLflow and all that a job imports."""
    return process_context("tft_exp.sweep.child")


def warm_up() -> None:
    """Have the libraries imported. Returns once they are, and so is to be called beside other work."""
    process = forkserver().Process(target=_nothing)  # type: ignore[attr-defined]
    process.start()
    process.join()


def _nothing() -> None:
    """Of a process that is there to have its server started."""


def apart(function: str, *arguments: Any) -> Any:
    """Call a function of tft_exp.sweep.child in a process of its own, where the libraries are, and return its result.
    Raises what it raises."""
    here, there = forkserver().Pipe()
    process = forkserver().Process(target=_call, args=(there, function, arguments))  # type: ignore[attr-defined]
    process.start()
    there.close()
    try:
        succeeded, value = here.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the process of {function} ended with exit code {process.exitcode}") from None
    process.join()
    if not succeeded:
        raise value
    return value


def _call(connection: Connection, function: str, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from tft_exp.sweep import child

    try:
        connection.send((True, getattr(child, function)(*arguments)))
    except Exception as error:
        connection.send((False, error))


def _enter(connection: Connection, job: SweepJob, place: Place, task: bytes, plans: Mapping[str, Any]) -> None:
    # The terminal sends Ctrl-C to every process; the sweep's own then tells the jobs, once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from tft_exp.sweep.child import run_job

    run_job(connection, job, place, task, plans)


class Pool:
    """Runs jobs, some at a time. `task` is what a job needs beside its configuration, pickled."""

    def __init__(
        self, task: bytes, listener: Listener, on_lost: Callable[[Ended], Ended], slots: int = 1, gpus: Sequence[str] = ()
    ) -> None:
        self._task = task
        self._listener = listener
        self._on_lost = on_lost
        self._free = [Place(slot, slots, gpus[slot % len(gpus)] if len(gpus) > 1 else None) for slot in range(slots)]
        self._running: list[_Running] = []
        self._plans: dict[str, Any] = {}  # of runs that differ in their seed, one

    def run(self, jobs: Sequence[SweepJob], *, stop_on_failure: bool) -> list[Ended]:
        """All jobs, in their order; with `stop_on_failure` none is started after one has failed or was killed. On an exception,
        such as Ctrl-C, those that run are told to end, and it is raised again once they have."""
        waiting, ended = list(jobs), list[Ended]()
        try:
            while waiting or self._running:
                while waiting and self._free:
                    self._start(waiting.pop(0))
                for finished in self._listen():
                    ended.append(finished)
                    self._listener.ended(finished)
                    if stop_on_failure and finished.outcome in ("failed", "killed"):
                        ended += [Ended(job.number, job.label, "not started", reason="an earlier job failed") for job in waiting]
                        waiting.clear()
        except BaseException:
            for finished in self._end_all():
                self._listener.ended(finished)
            raise
        return ended

    def _start(self, job: SweepJob) -> None:
        place = self._free.pop(0)
        here, there = forkserver().Pipe()
        process = forkserver().Process(target=_enter, args=(there, job, place, self._task, self._plans))  # type: ignore[attr-defined]
        self._listener.started(job)
        process.start()
        there.close()
        self._running.append(_Running(job, place, process, here, time.monotonic()))

    def _listen(self) -> list[Ended]:
        """Wait until a job says something or ends; those that ended."""
        self._wait(None)
        return [self._gone(running) for running in list(self._running) if not self._hear_all(running)]

    def _wait(self, seconds: float | None) -> bool:
        # A process of a killed job may still hold the other end of its connection.
        return bool(wait([*(one.connection for one in self._running), *(one.process.sentinel for one in self._running)], seconds))

    def _hear_all(self, running: _Running) -> bool:
        """Take what a job has said; false where there will be no more."""
        alive = running.process.is_alive()
        try:
            while running.connection.poll():
                self._hear(running, *running.connection.recv())
        except (EOFError, OSError):
            return False
        return alive

    def _hear(self, running: _Running, kind: str, *content: Any) -> None:
        if kind == "opened":
            running.run_id, running.name = content
        elif kind == "message":
            self._listener.message(content[0])
        elif kind == "epoch":
            self._listener.epoch(content[0])
        elif kind == "progress":
            self._listener.progress(running.job, *content)
        elif kind == "ended":
            running.report, plans = content
            self._plans |= plans

    def _gone(self, running: _Running) -> Ended:
        running.process.join()
        running.connection.close()
        self._running.remove(running)
        self._free.append(running.place)
        seconds = time.monotonic() - running.began
        job = running.job
        if running.report is not None:
            report = running.report
            return Ended(
                job.number, job.label, report.outcome, report.name, report.run_id, report.reason, seconds, report.summary, report.phase
            )
        lost = Ended(job.number, job.label, "killed", running.name, running.run_id, _cause(running.process.exitcode), seconds)
        return self._on_lost(lost)

    def _end_all(self) -> list[Ended]:
        """Tell all that run to end, and wait for them; whoever takes too long is killed."""
        for running in self._running:
            if running.process.pid is not None and running.process.is_alive():
                os.kill(running.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + SECONDS_TO_END
        ended = []
        while self._running:
            if not self._wait(max(0.0, deadline - time.monotonic())):
                for running in self._running:
                    running.process.kill()
                deadline = time.monotonic() + SECONDS_TO_END
            ended += [self._gone(running) for running in list(self._running) if not self._hear_all(running)]
        return ended


def _cause(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        by = ": from outside, or by the kernel's out-of-memory killer (dmesg tells)" if name == "SIGKILL" else ""
        return f"killed by {name}{by}"
    return f"its process ended with exit code {exitcode}"
