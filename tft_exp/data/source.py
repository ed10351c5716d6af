"""Parquet and CSV in: only the needed columns, or an error that names file and column."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from tft_exp.data.arrays import BLOCK
from tft_exp.errors import DataError

DEMO = "demo:"
DEMO_FOLDER = Path(__file__).resolve().parent.parent / "demo"
CSV_ENDINGS = (".csv", ".txt", ".csv.gz")


@dataclass(frozen=True)
class Files:
    """The files that rows come from: `first_rows[i]` is the first row of `paths[i]`, `rows` how many all hold.

    `there` names every column of the first file, read or not; `types` has the wanted ones, as Arrow calls them.
    """

    paths: tuple[Path, ...]
    first_rows: tuple[int, ...]
    rows: int
    there: tuple[str, ...]
    types: dict[str, pa.DataType]

    def place(self, row: int) -> str:
        """Where a row of all files stands: its file and the number of the row in it, from 1."""
        index = int(np.searchsorted(self.first_rows, row, side="right")) - 1
        return f"{self.paths[index].name} row {row - self.first_rows[index] + 1}"


@dataclass(frozen=True)
class Source:
    """Columns of rows that follow each other, as read, from row `begin` of all files on."""

    table: pa.Table
    files: Files
    begin: int = 0

    def place(self, row: int) -> str:
        """Where a row of the table stands: its file and the number of the row in it, from 1."""
        return self.files.place(self.begin + row)


@dataclass(frozen=True)
class _Opened:
    """One file, opened: its wanted columns' types, and its rows part by part."""

    path: Path
    there: tuple[str, ...]
    types: dict[str, pa.DataType]
    rows: int
    parts: Callable[[], Iterator[pa.Table]]


def find_files(path: str) -> tuple[Path, ...]:
    """The files that `data.path` names: a packaged demo file, one file, or a folder's Parquet files in order of name."""
    if path.startswith(DEMO):
        demo = DEMO_FOLDER / f"{path.removeprefix(DEMO)}.parquet"
        if not demo.exists():
            names = ", ".join(f"{DEMO}{found.stem}" for found in sorted(DEMO_FOLDER.glob("*.parquet")))
            raise DataError(f"there is no packaged data {path}", where="data.path", mend=f"packaged: {names}")
        return (demo,)
    given = Path(path).expanduser()
    if given.is_dir():
        files = tuple(sorted(given.glob("*.parquet")))
        if not files:
            raise DataError(
                f"the folder {path} holds no *.parquet file", where="data.path", mend="name a file, or a folder of Parquet files"
            )
        nested = [file for file in files if file.is_dir()]
        if nested:
            raise DataError(
                f"{nested[0]} is a folder itself; only the files right in {path} are read",
                where="data.path",
                mend=f"set data.path={nested[0]}, or move its files up",
            )
        return files
    if not given.exists():
        near = difflib.get_close_matches(given.name, [p.name for p in given.parent.glob("*")] if given.parent.is_dir() else [], n=1)
        mend = f"did you mean {given.parent / near[0]}?" if near else "name a Parquet or CSV file, or a folder of Parquet files"
        raise DataError(f"there is no file {path}", where="data.path", mend=mend)
    return (given,)


def open_source(path: str, columns: Sequence[str], text: Sequence[str] = ()) -> tuple[Files, Iterator[Source]]:
    """The files at `path`, and `columns` of their rows, part by part; Parquet is read as the parts are asked for, CSV at once.

    A CSV file's columns in `text` are not guessed at, so that 007 stays 007. Raises DataError for what cannot be read, naming the
    file, and the column where it can be told.
    """
    opened = [_open(file, columns, text) for file in find_files(path)]
    first = opened[0]
    for one in opened[1:]:
        for name, ours in first.types.items():
            if ours != one.types[name]:
                raise DataError(
                    f"the folder's files differ: column {name} is {ours} in {first.path.name} and {one.types[name]} in {one.path.name}",
                    where=f"{one.path}, column {name}",
                    mend="write them with one schema",
                )
    ends = np.cumsum([0, *(one.rows for one in opened)]).tolist()
    if ends[-1] == 0:
        raise DataError(f"{path} holds no rows", where=str(first.path), mend="write the file again, or name another in data.path")
    files = Files(tuple(one.path for one in opened), tuple(ends[:-1]), ends[-1], first.there, first.types)
    return files, _parts(opened, files)


def _parts(opened: Sequence[_Opened], files: Files) -> Iterator[Source]:
    tables = chain.from_iterable(one.parts() for one in opened)
    begin = 0
    # One part is decoded, which needs no lock of Python's, while the one before is worked on.
    with ThreadPoolExecutor(1) as beside:
        coming = beside.submit(next, tables, None)
        while (table := coming.result()) is not None:
            coming = beside.submit(next, tables, None)
            yield Source(table, files, begin)
            begin += table.num_rows


def read_source(path: str, columns: Sequence[str], text: Sequence[str] = ()) -> Source:
    """All rows of `columns` at once; what `open_source` says holds."""
    files, parts = open_source(path, columns, text)
    return Source(pa.concat_tables([part.table for part in parts]), files)


def count_rows_and_categories(files: Sequence[Path], columns: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Rows of all files, and how many values each of `columns` has; of Parquet nothing else is read. Raises DataError."""
    opened = [_open(file, columns, columns) for file in files]
    found: dict[str, set[object]] = {name: set() for name in columns}
    for one in opened if columns else []:
        for table in one.parts():
            for name, values in found.items():
                values.update(table[name].unique().drop_null().to_pylist())
    return sum(one.rows for one in opened), {name: len(values) for name, values in found.items()}


def fingerprint(files: Iterable[Path]) -> str:
    """16 hex digits of the SHA-256 over the files' bytes, in order."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]


def _open(file: Path, columns: Sequence[str], text: Sequence[str]) -> _Opened:
    try:
        with file.open("rb") as stream:
            magic = stream.read(4)
    except OSError as error:
        raise DataError(f"{file} cannot be opened: {error.strerror}", where=str(file), mend="check its permissions") from error
    if not magic:
        raise DataError(f"{file} is empty (0 bytes)", where=str(file), mend="fetch or write the file again")
    if magic == b"PARE":
        raise _encrypted(str(file), file)
    is_parquet = magic == b"PAR1"
    if not is_parquet and not file.name.lower().endswith(CSV_ENDINGS):
        raise DataError(f"{file} is neither Parquet nor CSV", where=str(file), mend="give a .parquet or a .csv file")
    try:
        return _open_parquet(file, columns, text) if is_parquet else _read_csv(file, columns, text)
    except MemoryError:  # Arrow's own is an ArrowException too, and says nothing about the file
        raise
    except (OSError, pa.ArrowException) as error:
        if is_parquet:
            raise _damaged(file, error) from error
        mend = "write it as UTF-8 text with one header line and commas in between"
        raise DataError(f"{file} cannot be read as CSV: {reason_of(error)}", where=str(file), mend=mend) from error


def reason_of(error: Exception) -> str:
    """An error of Arrow's in one line; of a damaged file it may quote bytes that no terminal should be sent."""
    return "".join(letter for letter in str(error).splitlines()[0] if letter.isprintable())


def _encrypted(where: str, file: Path) -> DataError:
    return DataError(f"{file} is encrypted, and there is no key for it", where=where, mend="write it without encryption")


def _damaged(file: Path, error: Exception, columns: Sequence[str] = ()) -> DataError:
    where = f"{file}, column {', '.join(columns)}" if columns else str(file)
    reason = reason_of(error)
    if "decrypt" in reason.lower():
        return _encrypted(where, file)
    return DataError(f"{file} is damaged and cannot be read: {reason}", where=where, mend="fetch or write the file again")


def _parquet(file: Path, encoded: Sequence[str] = ()) -> pq.ParquetFile:
    # Without its own unit an INT96 stamp beyond 2262 would come out as a date around 1816.
    return pq.ParquetFile(file, page_checksum_verification=True, coerce_int96_timestamp_unit="us", read_dictionary=list(encoded))


def _open_parquet(file: Path, columns: Sequence[str], text: Sequence[str]) -> _Opened:
    with _parquet(file) as parquet:
        schema, rows = parquet.schema_arrow, parquet.metadata.num_rows
    _require_columns(file, schema.names, columns)
    types = {name: schema.field(name).type for name in columns}
    encoded = [name for name in text if pa.types.is_string(types[name])]
    return _Opened(file, tuple(schema.names), types, rows, lambda: _parquet_parts(file, columns, encoded))


def _parquet_parts(file: Path, columns: Sequence[str], encoded: Sequence[str]) -> Iterator[pa.Table]:
    """Of `encoded` text columns come the codes that the file has, and no word is made of each."""
    with _parquet(file, encoded) as parquet:
        try:
            for groups in _row_groups(parquet):
                for batch in parquet.iter_batches(BLOCK, row_groups=groups, columns=list(columns)):
                    yield pa.Table.from_batches([batch]).select(list(columns))
        except MemoryError:
            raise
        except (OSError, pa.ArrowException) as error:
            bad = [name for name in columns if not _readable(parquet, name)]
            raise _damaged(file, error, bad) from error


def _row_groups(parquet: pq.ParquetFile) -> Iterator[list[int]]:
    """Row groups that follow each other and have a block of rows together: asked for all of a file's, Arrow holds on to each."""
    groups, rows = [], 0
    for group in range(parquet.num_row_groups):
        groups.append(group)
        rows += parquet.metadata.row_group(group).num_rows
        if rows >= BLOCK:
            yield groups
            groups, rows = [], 0
    if groups:
        yield groups


def _readable(parquet: pq.ParquetFile, column: str) -> bool:
    try:
        parquet.read(columns=[column])
    except (OSError, pa.ArrowException):
        return False
    return True


def _read_csv(file: Path, columns: Sequence[str], text: Sequence[str]) -> _Opened:
    # Arrow counts rows only with one thread, and an error must name its row.
    counting = pyarrow.csv.ReadOptions(use_threads=False)
    with pyarrow.csv.open_csv(file, read_options=counting) as reader:
        there = tuple(reader.schema.names)
    _require_columns(file, there, columns)
    # NA and NULL are tickers too: of text only the empty one is nothing, which `categories` sees to.
    options = pyarrow.csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(text, pa.string()), strings_can_be_null=False)
    try:
        table = pyarrow.csv.read_csv(file, convert_options=options)
    except pa.ArrowInvalid:
        table = pyarrow.csv.read_csv(file, read_options=counting, convert_options=options)
    for name in text:
        table = table.set_column(table.schema.get_field_index(name), name, _whole_numbers(table[name]))
    types = {name: table.schema.field(name).type for name in columns}
    return _Opened(file, there, types, table.num_rows, lambda: iter([table]))


def _whole_numbers(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text that holds plain whole numbers alone, as integers: 2 then sorts before 10, as it does from Parquet."""
    found = text.unique()
    found = found.filter(pc.not_equal(found, ""))
    try:
        plain = len(found) > 0 and found.cast(pa.int64()).cast(pa.string()).equals(found)
    except pa.ArrowInvalid:
        return text
    return pc.if_else(pc.equal(text, ""), None, text).cast(pa.int64()) if plain else text


def _require_columns(file: Path, there: Sequence[str], wanted: Sequence[str]) -> None:
    twice = [name for name in wanted if there.count(name) > 1]
    if twice:
        raise DataError(
            f"{file} has {there.count(twice[0])} columns of the name {twice[0]}, and which is meant cannot be told",
            where=f"{file}, column {twice[0]}",
            mend="rename or remove the others",
        )
    missing = [name for name in wanted if name not in there]
    if not missing:
        return
    if len(there) == 1 and any(mark in there[0] for mark in ";\t|"):
        raise DataError(
            f"{file} is not separated by commas: its header reads as one column, {there[0]!r}", where=str(file), mend="write it with commas"
        )
    guesses = [f"{name}: did you mean {near[0]}?" for name in missing if (near := difflib.get_close_matches(name, there, n=1))]
    raise DataError(
        f"{file} has no column {', '.join(missing)}",
        where=str(file),
        mend=f"{' '.join(guesses)} columns there: {', '.join(there)}; name yours in data.time, data.entities, data.bars.* ...; "
        "log_return and its like are derived with features=ohlcv".strip(),
    )
