"""Arrays of rows: in memory, or in files that are mapped into memory, of which only what was touched last is held."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakSet

import numpy as np
from numpy.typing import DTypeLike

# Rows that are worked on at once. All sums are by block, so that they are the same wherever the arrays lie.
BLOCK = 1 << 16
RELEASED = 4  # blocks, after which memory is let go
PICKED = 1 << 12  # rows, each of which may bring a page of its own into memory


class Arrays:
    """Makes arrays and lets go of what memory holds of them. Without a folder they lie in memory, and nothing is let go.

    An array with a name becomes the file `<name>.bin` of the folder; one without is gone, also from the disk, with its last user.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._mapped: WeakSet[mmap.mmap] = WeakSet()
        self._room = 0 if folder is None else shutil.disk_usage(folder).free

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike, name: str | None = None) -> np.ndarray:
        """An array to be filled; in a file it begins with zeros. Raises OSError where the disk is full."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if self.folder is None:
            return np.empty(shape, dtype=dtype)
        if name is None:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                return self._map(file.fileno(), size, shape, dtype)
        path = self.folder / f"{name}.bin"
        path.unlink(missing_ok=True)  # an array of that name may still be in use
        with path.open("x+b") as file:
            return self._map(file.fileno(), size, shape, dtype)

    def _map(self, descriptor: int, size: int, shape: int | tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        if size == 0:
            return np.empty(shape, dtype=dtype)
        # A full disk that is first noticed by a write into mapped memory ends the process without a word; to have the file's
        # size set aside by the system made those writes five times as slow.
        if size + sum(len(mapped) for mapped in self._mapped) > self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.truncate(descriptor, size)
        mapped = mmap.mmap(descriptor, size)
        self._mapped.add(mapped)
        return np.frombuffer(mapped, dtype=dtype).reshape(shape)

    def kept(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """The array that the file `<name>.bin` holds. What is written to it never reaches the file, and is lost when memory is let go.

        Raises OSError where the file is not there.
        """
        assert self.folder is not None
        with (self.folder / f"{name}.bin").open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return np.empty(shape, dtype=dtype)
            # Torch takes no memory that cannot be written to.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._mapped.add(mapped)
        return np.frombuffer(mapped, dtype=dtype).reshape(shape)

    def release(self) -> None:
        """Let memory go that the files hold as well; what was written stays written."""
        for mapped in self._mapped:
            if hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)

    def blocks(self, rows: int) -> Iterator[slice]:
        """The rows 0 .. `rows` - 1, block by block; after a few, memory is let go."""
        for begin in range(0, rows, BLOCK):
            yield slice(begin, min(begin + BLOCK, rows))
            if begin // BLOCK % RELEASED == RELEASED - 1:
                self.release()
        self.release()

    def picked(self, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The values of a few rows, which may lie far apart, in memory."""
        picked = np.empty(len(rows), dtype=values.dtype)
        for begin in range(0, len(rows), PICKED):
            picked[begin : begin + PICKED] = values[rows[begin : begin + PICKED]]
            self.release()
        return picked

    def taken(self, values: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """The values at `kept`, a mask or an index, as an array of their own."""
        result = self.empty(int(np.count_nonzero(kept)) if kept.dtype == bool else len(kept), values.dtype)
        done = 0
        for block in self.blocks(len(kept)):
            part = values[block][kept[block]] if kept.dtype == bool else values[kept[block]]
            result[done : done + len(part)] = part
            done += len(part)
        return result
