"""What a run records, written down on this machine first and sent to the MLflow store from there, at once or later.

Once a run is open no trouble of the store's ends it: what cannot be sent stays in the spool, a folder a run, and is sent by
the run itself, by the next one, or by `tft-exp send`.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tft_exp.termination import undisturbed
from tft_exp.tracking.store import Store, open_store, store_uri

log = logging.getLogger("tft_exp")

# A store that does not answer is asked again after this many times as long as its silence took, and not before so many seconds:
# a run spends a tenth of its time on it at most.
PATIENCE = 9.0
SECONDS_BETWEEN_TRIES = 20.0


def now_ms() -> int:
    """Milliseconds since 1970, as MLflow counts time."""
    return int(time.time() * 1000)


@dataclass
class Destination:
    """Where runs are recorded, as a configuration's `tracking` has it: the server or store `uri`, or, where that is None, the
    SQLite store in `home`. Opened when it is first needed."""

    uri: str | None
    home: str
    experiment: str
    store: Store | None = None
    silent: bool = False  # did not take what was sent last
    next_try: float = 0.0

    def open(self) -> Store:
        """Raises TrackingError where the store cannot be reached."""
        if self.store is None:
            self.store = open_store(self.uri, self.home, self.experiment)
        return self.store

    @property
    def address(self) -> str:
        return store_uri(self.uri, self.home)


@dataclass
class Journal:
    """One run's folder in the spool: `artifacts/`, the lines of `journal.jsonl` in the order in which they happened, and in
    `sent.json` how many of them the store has and which id it gave the run. Held by one process at a time."""

    folder: Path
    lock: FileLock
    lines: list[dict[str, Any]] = field(default_factory=list)
    sent: int = 0
    run_id: str | None = None
    _may_exist: bool = False  # the store may have the run, though it never told its id

    @property
    def artifacts(self) -> Path:
        """What is written there is sent when the run ends."""
        return self.folder / "artifacts"

    @property
    def opening(self) -> Mapping[str, Any]:
        """Where the run goes and what it was opened with: uri (None: the store beside the spool), experiment, name, tags, time."""
        opening: Mapping[str, Any] = self.lines[0]["open"]
        return opening

    @property
    def ended(self) -> bool:
        return "end" in self.lines[-1]

    def add(self, line: dict[str, Any]) -> None:
        with undisturbed():
            self.lines.append(line)
            with open(self.folder / "journal.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")

    def send(self, destination: Destination, *, patient: bool = False) -> str:
        """Send what the store does not have yet, and return what stood in the way, "" where nothing did. With `patient`, a store
        that did not answer lately is left alone. A run that has ended and is sent is no longer in the spool."""
        began = time.monotonic()
        if patient and began < destination.next_try:
            return "the store did not answer lately"
        with undisturbed():
            try:
                store = destination.open()
                while self.sent < len(self.lines):
                    self._send_line(store, self.lines[self.sent])
                    self.sent += 1
                    (self.folder / "sent.json").write_text(json.dumps({"run_id": self.run_id, "lines": self.sent}))
            # Whatever a store, or the storage of its artifacts, may raise: the run is worth more.
            except Exception as error:
                destination.next_try = time.monotonic() + max(SECONDS_BETWEEN_TRIES, PATIENCE * (time.monotonic() - began))
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                if not destination.silent:
                    log.warning("MLflow does not take %s: it goes on, and is kept in %s\n  %s", self.opening["name"], self.folder, reason)
                destination.silent = True
                return reason
            if destination.silent:
                log.warning("MLflow answers again, and has all of %s", self.opening["name"])
                destination.silent = False
            if self.ended:
                shutil.rmtree(self.folder)
        return ""

    def release(self) -> None:
        """Let other processes have it."""
        if not self.folder.exists():
            Path(self.lock.lock_file).unlink(missing_ok=True)
        self.lock.release()

    def _send_line(self, store: Store, line: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric, Param, RunTag

        if "open" in line:
            self.run_id = self._find(store) or self._create(store)
            return
        assert self.run_id is not None
        if "end" in line:
            if self.artifacts.is_dir() and any(self.artifacts.iterdir()):
                store.client.log_artifacts(self.run_id, str(self.artifacts))
            store.client.set_terminated(self.run_id, status=line["end"], end_time=line["time"])
            return
        store.client.log_batch(
            self.run_id,
            metrics=[Metric(key, value, line["time"], line["step"]) for key, value in line.get("metrics", {}).items()],
            params=[Param(key, value) for key, value in line.get("params", {}).items()],
            tags=[RunTag(key, value) for key, value in line.get("tags", {}).items()],
        )

    def _create(self, store: Store) -> str:
        opening = self.opening
        tags = {**opening["tags"], "journal": self.folder.name}
        self._may_exist = True
        run = store.client.create_run(store.experiment_id, start_time=opening["time"], run_name=opening["name"], tags=tags)
        return str(run.info.run_id)

    def _find(self, store: Store) -> str | None:
        """The run, where an earlier try to create it came through though its answer did not."""
        if not self._may_exist:
            return None
        found = store.client.search_runs([store.experiment_id], filter_string=f"tags.journal = '{self.folder.name}'", max_results=1)
        return str(found[0].info.run_id) if found else None


def spool_of(home: str) -> Path:
    """The spool of a home of runs."""
    return Path(home).resolve() / "spool"


def begin(home: str, key: str, opening: Mapping[str, Any]) -> Journal:
    """A new journal, held by this process. `key` is unique in the spool; `opening` as Journal's, with the time in ms."""
    folder = spool_of(home) / key
    (folder / "artifacts").mkdir(parents=True)
    lock = FileLock(folder.with_name(f"{key}.lock"))
    lock.acquire()
    journal = Journal(folder, lock)
    journal.add({"open": dict(opening)})
    return journal


def take(home: str, key: str) -> Journal | None:
    """The journal of a run whose process is gone; None where there is none, or its process lives."""
    folder = spool_of(home) / key
    if not folder.is_dir():
        return None
    lock = FileLock(folder.with_name(f"{key}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    lines = _read_lines(folder / "journal.jsonl")
    if not lines:
        # Its process ended before it wrote a line, or another one has just sent it.
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()
        return None
    sent = _read_lines(folder / "sent.json") or [{"run_id": None, "lines": 0}]
    return Journal(folder, lock, lines, sent[0]["lines"], sent[0]["run_id"], _may_exist=True)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The file's lines; one that was cut off while it was written is left out."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


@dataclass(frozen=True)
class Left:
    """A run that was found in the spool: sent now, or what stood in the way."""

    name: str
    folder: Path
    trouble: str
    run_id: str | None


def send_left(home: str, only: Destination | None = None) -> list[Left]:
    """Send what earlier runs left in the spool of `home`, to the stores that they were for; with `only`, what that one lacks.
    A run without an end, whose process is gone, was killed."""
    left = []
    destinations = {} if only is None else {(only.address, only.experiment): only}
    for folder in sorted(path for path in spool_of(home).glob("*") if path.is_dir()):
        journal = take(home, folder.name)
        if journal is None:
            continue
        opening = journal.opening
        destination = Destination(opening["uri"], home, opening["experiment"], silent=True)
        if only is None or (destination.address, destination.experiment) in destinations:
            destination = destinations.setdefault((destination.address, destination.experiment), destination)
            if not journal.ended:
                end_killed(journal, "its process was killed")
            left.append(Left(opening["name"], folder, journal.send(destination), journal.run_id))
        journal.release()
    return left


def end_killed(journal: Journal, reason: str) -> None:
    """Add what a killed process could not say itself."""
    journal.add({"tags": {"outcome": "killed", "error": reason}, "time": now_ms()})
    journal.add({"end": "KILLED", "time": now_ms()})
