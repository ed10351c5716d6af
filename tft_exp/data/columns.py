"""Columns of a table as arrays, exactly: times, numbers and categories, or an error that names the column and its type."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import DTypeLike

from tft_exp.data.source import Source, reason_of
from tft_exp.errors import DataError

NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"


def times_us(source: Source, column: str) -> tuple[np.ndarray, np.ndarray]:
    """A time column as int64 microseconds UTC and a mask of empty rows. Raises DataError for other types."""
    values = source.table[column]
    kind = values.type
    if pa.types.is_date(kind):
        values = values.cast(pa.timestamp("ms"))
    elif not pa.types.is_timestamp(kind):
        mend = "write it as a timestamp or a date"
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            mend += "; in CSV as 2024-01-31 09:30:00, with a zone (+00:00) in all rows or in none"
        if pa.types.is_integer(kind):
            mend += ": a number alone does not say whether it counts seconds, milliseconds or days"
        raise DataError(f"the time column {column} is {kind}", where=f"{source.files.paths[0]}, column {column}", mend=mend)
    zone = values.type.tz  # a stamp with a zone is stored as UTC already; without one it is taken as UTC
    try:
        values = values.cast(pa.timestamp("us", tz=zone))
    except pa.ArrowInvalid as error:
        raise DataError(
            f"the time column {column} cannot be held in microseconds: {reason_of(error)}",
            where=f"{source.files.paths[0]}, column {column}",
            mend="round the stamps to microseconds",
        ) from error
    empty = _numbers(values.is_null().cast(pa.uint8()), np.bool_)
    return _numbers(values.cast(pa.int64()), np.int64), empty


def real_type(kind: pa.DataType) -> np.dtype[np.floating]:
    """The narrower of float32 and float64 that holds every number of an Arrow type as exactly as `reals` does."""
    narrow = (pa.float32(), pa.float16(), pa.int8(), pa.int16(), pa.uint8(), pa.uint16(), pa.bool_())
    return np.dtype(np.float32 if kind in narrow else np.float64)


def reals(source: Source, column: str) -> np.ndarray:
    """A number column as float64, empty rows as NaN. Raises DataError for other types, and for integers beyond 2**53.

    A decimal becomes the double nearest to it, as the same digits in a CSV file do.
    """
    values = source.table[column]
    kind = values.type
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"column {column} is {kind}, and a number is needed{_first_text(source, values)}",
            where=f"{source.files.paths[0]}, column {column}",
            mend="give it a categorical role, or write it as a number",
        )
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    if pa.types.is_decimal(kind):
        values = values.cast(pa.string())  # Arrow's own way to a double can be off in the last bit
    try:
        return _numbers(values.cast(pa.float64()), np.float64, np.nan)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"column {column} ({kind}) does not fit float64: {reason_of(error)}",
            where=f"{source.files.paths[0]}, column {column}",
            mend="write it as a double, or give it a categorical role",
        ) from error


def _first_text(source: Source, values: pa.ChunkedArray) -> str:
    """Of a text column the first value that is no number: often one stray word makes text of a whole CSV column."""
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return ""
    words = _numbers(pc.invert(pc.match_substring_regex(values, NUMBER)).cast(pa.uint8()), np.bool_)
    if not words.any():
        return " (all of it numbers, written as text)"
    row = int(np.argmax(words))
    return f" (the first that is none is {values[row].as_py()[:40]!r} at {source.place(row)})"


class Categories:
    """A categorical column that is read part by part: text, integers or truth values become numbers in the order of their first row."""

    def __init__(self, column: str) -> None:
        self.column = column
        self._found: pa.Array | None = None
        self._used = np.zeros(0, dtype=bool)  # a dictionary may hold values that no row has

    def add(self, source: Source) -> np.ndarray:
        """The numbers of a part's rows, int32; -1 where empty (also empty text). Raises DataError for other types."""
        values = _categorical(source, self.column)
        if pa.types.is_null(values.type):
            return np.full(len(values), -1, dtype=np.int32)
        encoded = _encoded(values)
        if _has_empty_text(encoded.dictionary):
            plain = _plain(values)
            encoded = _encoded(pc.if_else(pc.equal(plain, ""), pa.scalar(None, plain.type), plain))
        own = encoded.dictionary
        known = own.slice(0, 0) if self._found is None else self._found
        place = pc.index_in(own, value_set=known)
        new = own.filter(place.is_null())
        number = _numbers(place, np.int32, -1).copy()
        number[number < 0] = len(known) + np.arange(len(new), dtype=np.int32)
        self._found = pa.concat_arrays([known, new])
        self._used = np.append(self._used, np.zeros(len(new), dtype=bool))
        codes = _numbers(encoded.indices.cast(pa.int32()), np.int32, -1)
        self._used[number[np.bincount(codes + 1, minlength=len(own) + 1)[1:] > 0]] = True
        # What an empty row's -1 points at is put last.
        numbers: np.ndarray = np.append(number, np.int32(-1))[codes]
        return numbers

    def finish(self) -> tuple[np.ndarray, list[str]]:
        """The place of every number in the order of the values, int32 with -1 at its end for -1, and the values' names in that order."""
        if self._found is None:
            return np.array([-1], dtype=np.int32), []
        order = _numbers(pc.array_sort_indices(self._found), np.uint64)
        order = order[self._used[order]]
        rank = np.full(len(self._found) + 1, -1, dtype=np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        names = self._found.to_pylist()
        return rank, [str(names[number]) for number in order.tolist()]


def _encoded(values: pa.ChunkedArray) -> pa.DictionaryArray:
    whole = values.combine_chunks()
    if not pa.types.is_dictionary(whole.type):
        return whole.dictionary_encode()
    own = whole.dictionary
    # A dictionary of the file's own may hold nothing as a value, or a value twice.
    plain = own.null_count == 0 and len(own.unique()) == len(own) and not pa.types.is_string_view(own.type)
    return whole if plain else _plain(whole).dictionary_encode()


def _plain(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    return values.cast(pa.large_string() if pa.types.is_string_view(kind) else kind)


def _has_empty_text(values: pa.Array) -> bool:
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return False
    lengths = _numbers(pc.binary_length(values), np.int32 if pa.types.is_string(values.type) else np.int64)
    return bool((lengths == 0).any())


def _numbers(values: pa.Array | pa.ChunkedArray, kind: DTypeLike, empty: float = 0) -> np.ndarray:
    """Values as they lie in memory, not to be written to, with `empty` where there is none. Pyarrow's own way imports pandas, which
    takes a third of a second; so does every value of Python's that it is given."""
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    size = np.dtype(kind).itemsize
    parts = [np.frombuffer(one.buffers()[1], kind, len(one), one.offset * size) for one in chunks if len(one)]
    numbers = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, kind), *parts])
    if values.null_count:
        numbers = np.where(_numbers(values.is_null().cast(pa.uint8()), np.bool_), np.asarray(empty, kind), numbers)
    return numbers


def _categorical(source: Source, column: str) -> pa.ChunkedArray:
    values = source.table[column]
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not (is_text or pa.types.is_null(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"column {column} is {values.type}, and text, an integer or a truth value is needed",
            where=f"{source.files.paths[0]}, column {column}",
            mend="write it as text",
        )
    return values if pa.types.is_dictionary(values.type) else _plain(values)
