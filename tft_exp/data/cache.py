"""Prepared data, kept on the disk: made once, mapped into memory by every later start, and never believed without a look.

An entry is a folder of arrays and a manifest. It is made in a folder beside it, which takes its place when all is written, so
that what is there is whole. One process makes it, others that want it wait.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from tft_exp.data.arrays import Arrays
from tft_exp.errors import DataError

log = logging.getLogger("tft_exp")

MANIFEST = "manifest.json"
CHUNK = 1 << 22  # bytes that have a checksum of their own
# Bytes of each entry that a start reads to compare checksums: all of a small one, of a large one chunks spread evenly.
VERIFIED = 1 << 30
TAIL = 1 << 16  # bytes at a file's end, where Parquet has its footer


@dataclass(frozen=True)
class Kept:
    """What an entry holds: arrays, and what else was kept with them. `release` lets go what memory holds of the arrays."""

    arrays: dict[str, np.ndarray]
    about: dict[str, Any]
    release: Callable[[], None]


@dataclass(frozen=True)
class Entry:
    """One entry, which is there or is not. `state` says what it must have been made of, by what it is called."""

    folder: Path
    state: Mapping[str, str]

    def obtain(self, make: Callable[[Arrays], Kept]) -> Kept:
        """What is kept, or what `make` makes, kept from now on. Raises DataError where it cannot be written."""
        try:
            kept = self._read()
            if kept is not None:
                return kept
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder.with_suffix(".lock")):
                return self._read(say=True) or self._make(make)
        except OSError as error:
            raise DataError(
                f"prepared data cannot be kept in {self.folder.parent}: {error.strerror or error}",
                where="data.cache",
                mend="make room there, name another folder, or hold the rows in memory with data.cache=null",
            ) from error

    def _make(self, make: Callable[[Arrays], Kept]) -> Kept:
        partial = self.folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was ended
        partial.mkdir()
        try:
            made = make(Arrays(partial))
            # What every start reads whole may be lost with the power: that is noticed.
            sync = sum(values.nbytes for values in made.arrays.values()) > VERIFIED
            with ThreadPoolExecutor() as pool:  # what takes time here needs no lock of Python's
                written = pool.map(lambda name: _write(partial / f"{name}.bin", made.arrays[name], sync), made.arrays)
                files = dict(zip(made.arrays, written, strict=True))
            (partial / MANIFEST).write_text(json.dumps({"state": dict(self.state), "arrays": files, "about": made.about}))
            shutil.rmtree(self.folder, ignore_errors=True)
            partial.rename(self.folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        log.info("prepared data is kept in %s", self.folder)
        return self._mapped(files, made.about)

    def _read(self, *, say: bool = False) -> Kept | None:
        """What is kept, where it is whole and made of what it should be; else None, and with `say` a message why."""
        try:
            manifest = json.loads((self.folder / MANIFEST).read_text())
            reason = self._differs(manifest["state"]) or _damage(self.folder, manifest["arrays"])
            if reason is None:
                return self._mapped(manifest["arrays"], manifest["about"])
        except FileNotFoundError as error:
            if not self.folder.exists():
                return None
            reason = f"{Path(error.filename).name} is missing"
        except (ValueError, KeyError, TypeError):
            reason = f"{MANIFEST} is damaged"
        if say:
            log.warning("the data is prepared anew: what was kept in %s is not used, because %s", self.folder, reason)
        return None

    def _mapped(self, files: Mapping[str, Mapping[str, Any]], about: dict[str, Any]) -> Kept:
        arrays = Arrays(self.folder)
        found = {name: arrays.kept(name, tuple(file["shape"]), file["dtype"]) for name, file in files.items()}
        return Kept(found, about, arrays.release)

    def _differs(self, state: Mapping[str, str]) -> str | None:
        changed = [name for name, value in self.state.items() if state.get(name) != value]
        return f"{' and '.join(changed)} changed" if changed else None


def files_state(files: Sequence[Path]) -> str:
    """What changes when a file does: places, sizes, times of the last change, and a checksum of each file's end, where Parquet keeps
    counts and places of all its values. A file that is written again with the same of all these is not noticed."""
    states = []
    for file in files:
        told = file.stat()
        with file.open("rb") as stream:
            stream.seek(max(0, told.st_size - TAIL))
            states.append([str(file.resolve()), told.st_size, told.st_mtime_ns, zlib.crc32(stream.read())])
    return json.dumps(states)


def _write(path: Path, values: np.ndarray, sync: bool) -> dict[str, Any]:
    """Write an array, unless `Arrays` made it there, with `sync` down to the disk, and say what a reader needs to know of the file."""
    if not path.exists():
        values.tofile(path)
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        checksums = []
        while chunk := file.read(CHUNK):
            checksums.append(zlib.crc32(chunk))
    told = path.stat()
    return {
        "dtype": values.dtype.str,
        "shape": values.shape,
        "bytes": told.st_size,
        "changed_ns": told.st_mtime_ns,
        "checksums": checksums,
    }


def _damage(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What is wrong with an entry's arrays. One that was changed since it was written is read whole."""
    chunks = sum(len(about["checksums"]) for about in files.values())
    every = max(1, -(-chunks * CHUNK // VERIFIED))
    for name, about in files.items():
        path = folder / f"{name}.bin"
        told = path.stat()
        if told.st_size != about["bytes"]:
            return f"{path.name} has {told.st_size:,} bytes and not {about['bytes']:,}"
        with path.open("rb") as file:
            step = every if told.st_mtime_ns == about["changed_ns"] else 1
            for number in range(0, len(about["checksums"]), step):
                file.seek(number * CHUNK)
                if zlib.crc32(file.read(CHUNK)) != about["checksums"][number]:
                    return f"{path.name} is damaged"
    return None
