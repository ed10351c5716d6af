"""Columns of a table as arrays, exactly: times, numbers and categories, or an error that names the column and its type."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
        raise DataError(f"the time column {column} is {kind}", where=f"{source.files[0]}, column {column}", mend=mend)
    zone = values.type.tz  # a stamp with a zone is stored as UTC already; without one it is taken as UTC
    try:
        values = values.cast(pa.timestamp("us", tz=zone))
    except pa.ArrowInvalid as error:
        raise DataError(
            f"the time column {column} cannot be held in microseconds: {reason_of(error)}",
            where=f"{source.files[0]}, column {column}",
            mend="round the stamps to microseconds",
        ) from error
    empty = values.is_null().to_numpy()
    return values.cast(pa.int64()).fill_null(0).to_numpy(), empty


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
            where=f"{source.files[0]}, column {column}",
            mend="give it a categorical role, or write it as a number",
        )
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    if pa.types.is_decimal(kind):
        values = values.cast(pa.string())  # Arrow's own way to a double can be off in the last bit
    try:
        return np.array(values.cast(pa.float64()).fill_null(np.nan).to_numpy(), copy=True)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"column {column} ({kind}) does not fit float64: {reason_of(error)}",
            where=f"{source.files[0]}, column {column}",
            mend="write it as a double, or give it a categorical role",
        ) from error


def _first_text(source: Source, values: pa.ChunkedArray) -> str:
    """Of a text column the first value that is no number: often one stray word makes text of a whole CSV column."""
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return ""
    words = pc.fill_null(pc.invert(pc.match_substring_regex(values, NUMBER)), False).to_numpy()
    if not words.any():
        return " (all of it numbers, written as text)"
    row = int(np.argmax(words))
    return f" (the first that is none is {values[row].as_py()[:40]!r} at {source.place(row)})"


def categories(source: Source, column: str) -> tuple[np.ndarray, list[str]]:
    """A categorical column as int32 codes, -1 where empty (also empty text), and the sorted names that they stand for."""
    values = source.table[column]
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if pa.types.is_string_view(kind):
        kind = pa.large_string()
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if pa.types.is_null(kind):
        return np.full(len(values), -1, dtype=np.int32), []
    if not (is_text or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"column {column} is {values.type}, and text, an integer or a truth value is needed",
            where=f"{source.files[0]}, column {column}",
            mend="write it as text",
        )
    values = values.cast(kind)
    if is_text:
        values = pc.if_else(pc.equal(values, ""), pa.scalar(None, kind), values)
    encoded = values.combine_chunks().dictionary_encode()
    found = encoded.dictionary
    order = pc.array_sort_indices(found).to_numpy()
    rank = np.empty(len(order) + 1, dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    rank[-1] = -1  # what an empty row's code of -1 points at
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return rank[codes], [str(name) for name in found.take(pa.array(order)).to_pylist()]
