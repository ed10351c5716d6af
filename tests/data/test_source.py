"""Reading: exact types, only the needed columns, and errors that name file and column."""

from __future__ import annotations

import base64
from collections.abc import Callable
from decimal import Context, Decimal
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

from tests.data.builders import bars, load, load_table, write
from tft_exp.data.columns import Categories, reals, times_us
from tft_exp.data.source import Files, Source, read_source
from tft_exp.errors import DataError

HERE = Path(__file__).parent / "parquet_testing"


@pytest.mark.parametrize(
    ("name", "columns", "words"),
    [
        ("PARQUET-1481.parquet", ["x"], ["damaged", "UNKNOWN"]),
        ("ARROW-GH-45185.parquet", ["x"], ["damaged", "repetition level"]),
        ("ARROW-RS-GH-6229-LEVELS.parquet", ["outer"], ["damaged", "levels", "column outer"]),
        ("datapage_v1-corrupt-checksum.parquet", ["a"], ["damaged", "CRC checksum", "column a"]),
        ("encrypt_columns_and_footer.parquet.encrypted", ["x"], ["encrypted", "no key"]),
        ("nation.dict-malformed.parquet", ["timestamp", "close"], ["no column timestamp, close", "nation_key, name, region_key"]),
        ("alltypes_plain.parquet", ["timestamp", "close"], ["no column timestamp, close", "did you mean timestamp_col"]),
    ],
)
def test_files_of_the_parquet_test_set_are_refused(name: str, columns: list[str], words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        read_source(str(HERE / name), columns)
    for word in [name, *words]:
        assert word in str(caught.value)


def test_damage_is_placed_in_its_column(tmp_path: Path) -> None:
    path = tmp_path / "bars.parquet"
    table = pq.read_table(write(bars(), tmp_path / "plain.parquet"))
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(table.column_names.index("low"))
    assert chunk.path_in_schema == "low"
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"bars.parquet, column low\n"):
        load(path)
    assert load(path, "data.bars.low=null").report.rows_read == 120


def test_an_encrypted_column_is_no_damage(tmp_path: Path) -> None:
    class Keys(encryption.KmsClient):  # type: ignore[misc]
        def __init__(self, _: object) -> None:
            super().__init__()

        def wrap_key(self, key: bytes, _: str) -> bytes:
            return base64.b64encode(key)

    table = pq.read_table(write(bars(), tmp_path / "plain.parquet"))
    settings = encryption.EncryptionConfiguration(footer_key="f", column_keys={"c": ["close"]}, plaintext_footer=True)
    properties = encryption.CryptoFactory(Keys).file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    with pq.ParquetWriter(tmp_path / "bars.parquet", table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="is encrypted, and there is no key for it") as caught:
        load(tmp_path / "bars.parquet")
    assert "column close" in str(caught.value)


def test_all_columns_of_a_wrong_type_are_named_at_once(tmp_path: Path) -> None:
    table = bars().assign(timestamp=np.arange(120), close="x", volume="7")
    with pytest.raises(DataError) as caught:
        load_table(table, tmp_path)
    for words in ("3 columns", "timestamp is int64", "column close is", "'x' at bars.parquet row 1", "column volume is", "written as text"):
        assert words in str(caught.value)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pq.read_table(write(bars(), tmp_path / "plain.parquet"))
    pq.write_table(table.append_column("close", table["close"]), tmp_path / "bars.parquet")
    (tmp_path / "bars.csv").write_text(bars().assign(again=1.0).to_csv(index=False).replace("again", "close", 1))
    for name in ("bars.parquet", "bars.csv"):
        with pytest.raises(DataError, match="has 2 columns of the name close"):
            load(tmp_path / name)


def test_binary_text_and_wrong_types_are_named() -> None:
    source = read_source(str(HERE / "alltypes_plain.parquet"), ["timestamp_col", "string_col", "id"])
    with pytest.raises(DataError, match=r"string_col is binary, and a number is needed"):
        reals(source, "string_col")
    with pytest.raises(DataError, match=r"time column id is int32"):
        times_us(source, "id")


def test_int96_stamps_of_the_far_future_are_no_dates_of_1816(tmp_path: Path) -> None:
    stamps = pq.read_table(HERE / "int96_from_spark.parquet", coerce_int96_timestamp_unit="us")["a"]
    table = pa.table({"timestamp": stamps, "close": pa.array(np.arange(6.0))})
    pq.write_table(table, tmp_path / "far.parquet")
    absent = [f"data.bars.{name}=null" for name in ("open", "high", "low", "volume")]
    with pytest.raises(DataError) as caught:
        load(tmp_path / "far.parquet", "data.entities=[]", "data.on_bad_rows=drop", *absent)
    assert "timestamp outside 1950-01-01 to 2100-01-01" in str(caught.value)
    assert "row 3" in str(caught.value)
    source = read_source(str(HERE / "int96_from_spark.parquet"), ["a"])
    years = times_us(source, "a")[0][[0, 2]].astype("datetime64[us]").astype("datetime64[Y]").astype(int) + 1970
    assert years.tolist() == [2024, 9999]


def test_decimals_become_doubles() -> None:
    source = read_source(str(HERE / "fixed_length_decimal.parquet"), ["value"])
    assert reals(source, "value").tolist() == [float(n) for n in range(1, 25)]


@pytest.mark.parametrize(("digits", "after_point"), [(12, 3), (18, 8), (25, 2), (38, 18)])
def test_a_decimal_becomes_the_nearest_double(digits: int, after_point: int, tmp_path: Path) -> None:
    random = Random(0)
    values = [Decimal(random.randrange(10**digits)).scaleb(-after_point, Context(prec=50)) for _ in range(2000)]
    pq.write_table(pa.table({"x": pa.array(values, pa.decimal128(digits, after_point))}), tmp_path / "x.parquet")
    assert reals(read_source(str(tmp_path / "x.parquet"), ["x"]), "x").tolist() == [float(value) for value in values]


def test_nan_in_statistics_hides_no_row() -> None:
    values = reals(read_source(str(HERE / "nan_in_stats.parquet"), ["x"]), "x")
    assert len(values) == 2
    assert np.isnan(values[1])


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int16(), pa.int64(), pa.uint32(), pa.float32(), pa.float64(), pa.decimal128(12, 3), pa.bool_()]
)
def test_numbers_of_every_width_are_exact(kind: pa.DataType, tmp_path: Path) -> None:
    values = [Decimal(1), Decimal(0), None]
    plain = [None if v is None else bool(v) if pa.types.is_boolean(kind) else v if pa.types.is_decimal(kind) else int(v) for v in values]
    pq.write_table(pa.table({"x": pa.array(plain, kind)}), tmp_path / "x.parquet")
    read = reals(read_source(str(tmp_path / "x.parquet"), ["x"]), "x")
    assert read[:2].tolist() == [1.0, 0.0]
    assert np.isnan(read[2])


def test_integers_that_no_double_holds_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [2**53 + 1]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x \(int64\) does not fit float64"):
        reals(read_source(str(tmp_path / "x.parquet"), ["x"]), "x")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/Chicago"])
def test_every_unit_and_zone_gives_the_same_moment(unit: str, zone: str | None, tmp_path: Path) -> None:
    moment = pd.Timestamp("2024-03-10 12:00:01", tz="UTC")
    stored = pa.array([moment.tz_localize(None) if zone is None else moment], pa.timestamp(unit, tz=zone))
    pq.write_table(pa.table({"t": stored}), tmp_path / "t.parquet", version="2.6")
    values, empty = times_us(read_source(str(tmp_path / "t.parquet"), ["t"]), "t")
    assert values.tolist() == [int(moment.timestamp()) * 1_000_000]
    assert not empty.any()


def test_dates_are_midnights_and_nanoseconds_are_not_cut(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": pa.array([pd.Timestamp("2024-03-10").date(), None], pa.date32())}), tmp_path / "d.parquet")
    values, empty = times_us(read_source(str(tmp_path / "d.parquet"), ["t"]), "t")
    assert values[0] == pd.Timestamp("2024-03-10").value // 1000
    assert empty.tolist() == [False, True]
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("ns"))}), tmp_path / "n.parquet")
    with pytest.raises(DataError, match="cannot be held in microseconds"):
        times_us(read_source(str(tmp_path / "n.parquet"), ["t"]), "t")


def test_dictionary_text_is_text(tmp_path: Path) -> None:
    table = bars(60, ("B", "A"))
    plain = load_table(table, tmp_path)
    table["symbol"] = table["symbol"].astype("category")
    assert pa.types.is_dictionary(pq.read_schema(write(table, tmp_path / "dictionary.parquet")).field("symbol").type)
    assert same(plain, load(tmp_path / "dictionary.parquet"))
    assert plain.report.entity_names == ["A", "B"]


@pytest.mark.parametrize(
    "stored",
    [
        pa.DictionaryArray.from_arrays(pa.array([0, 1] * 30), pa.array(["A", "B", "never"])),
        pa.DictionaryArray.from_arrays(pa.array([0, 1] * 30, pa.int8()), pa.array(["A", "B", ""])),
        pa.array(["A", "B"] * 30, pa.string()),
        pa.array(["A", "B"] * 30, pa.large_string()),
    ],
    ids=["an unused value", "an unused empty one", "plain", "large"],
)
def test_only_values_that_rows_have_are_categories(stored: pa.Array, tmp_path: Path) -> None:
    plain = pq.read_table(write(bars(60), tmp_path / "plain.parquet"))
    pq.write_table(plain.append_column("mood", stored), tmp_path / "bars.parquet")
    dataset = load(tmp_path / "bars.parquet", "data.observed_categorical=[mood]")
    assert dataset.preprocessing["vocabularies"]["mood"] == ["A", "B"]
    assert dataset.rows.tensors.observed_categoricals[:, 0].tolist() == [1, 2] * 30


@pytest.mark.parametrize("values", [["A", None, "B"], ["A", "", "B"], ["A", "A", "B"]], ids=["nothing", "empty", "twice"])
def test_what_a_dictionary_of_the_file_may_hold(values: list[str | None]) -> None:
    """A reader may hand on a dictionary with nothing, an empty text, or a value twice in it."""
    table = pa.table({"mood": pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None]), pa.array(values))})
    files = Files((Path("x"),), (0,), 4, ("mood",), {"mood": table.schema.field("mood").type})
    found = Categories("mood")
    numbers = found.add(Source(table, files))
    rank, names = found.finish()
    assert [names[place] if place >= 0 else None for place in rank[numbers]] == [*(value or None for value in values), None]


def same(one: object, other: object) -> bool:
    return all(np.array_equal(getattr(one.rows.tensors, name), getattr(other.rows.tensors, name)) for name in vars(one.rows.tensors))  # type: ignore[attr-defined]


def test_csv_equals_parquet(tmp_path: Path) -> None:
    table = bars(80, ("A", "B"))
    table.to_csv(tmp_path / "bars.csv", index=False)
    assert same(load(tmp_path / "bars.csv", features="ohlcv", lookback=4), load_table(table, tmp_path, features="ohlcv", lookback=4))


@pytest.mark.parametrize(("first", "second"), [("001", "01"), ("NA", "NULL"), ("TRUE", "FALSE")])
def test_text_of_csv_stays_as_it_is_written(first: str, second: str, tmp_path: Path) -> None:
    table = bars(60, (first, second))
    table.to_csv(tmp_path / "bars.csv", index=False)
    assert load(tmp_path / "bars.csv").report.entity_names == sorted([first, second])


def test_whole_numbers_sort_alike_from_csv_and_parquet(tmp_path: Path) -> None:
    table = bars(60, ("2", "10", "9")).astype({"symbol": "int64"})
    table.to_csv(tmp_path / "bars.csv", index=False)
    assert load(tmp_path / "bars.csv").report.entity_names == ["2", "9", "10"]
    assert same(load(tmp_path / "bars.csv"), load_table(table, tmp_path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda text: text.replace(",", ";").encode(), "not separated by commas"),
        (lambda text: text.encode("utf-16"), "cannot be read as CSV"),
        (lambda text: text.replace("A", "Zürich").encode("latin-1"), "invalid UTF8"),
        (lambda text: text.replace(",A,", ",A,9,", 1).encode(), "Row #2"),
        (
            lambda text: text.replace("2024-01-01 00:05:00+00:00", "2024-01-01 00:05:00").encode(),
            "with a zone (+00:00) in all rows or in none",
        ),
        (lambda text: text.replace("2024-01-01 00:", "01/02/2024 00:").encode(), "timestamp is string"),
        (lambda text: text.splitlines(keepends=True)[0].encode(), "holds no rows"),
    ],
)
def test_csv_that_cannot_be_read_is_explained(content: Callable[[str], bytes], words: str, tmp_path: Path) -> None:
    (tmp_path / "bars.csv").write_bytes(content(bars().to_csv(index=False)))
    with pytest.raises(DataError) as caught:
        load(tmp_path / "bars.csv")
    assert words in str(caught.value)
    assert "bars.csv" in str(caught.value)
    assert caught.value.mend
    assert all(letter.isprintable() or letter == "\n" for letter in str(caught.value))


def test_a_column_that_holds_nothing_is_empty(tmp_path: Path) -> None:
    bars().assign(close=np.nan).to_csv(tmp_path / "bars.csv", index=False)
    table = pq.read_table(write(bars(), tmp_path / "plain.parquet")).drop_columns("close").append_column("close", pa.nulls(120))
    pq.write_table(table, tmp_path / "bars.parquet")
    for name in ("bars.csv", "bars.parquet"):
        with pytest.raises(DataError, match="close is empty or no finite number in 120 rows"):
            load(tmp_path / name)


def test_a_folder_equals_one_file_whatever_the_order_of_rows(tmp_path: Path) -> None:
    table = bars(90, ("A", "B"))
    whole = load_table(table, tmp_path)
    folder = tmp_path / "parts"
    folder.mkdir()
    shuffled = table.sample(frac=1, random_state=0)
    for number in range(3):
        write(shuffled.iloc[number::3], folder / f"part{number}.parquet")
    parts = load(folder)
    assert same(whole, parts)
    assert (parts.report.files, parts.report.rows_read) == (3, 180)


def test_a_folder_of_two_schemas_is_refused(tmp_path: Path) -> None:
    table = bars()
    write(table, tmp_path / "a.parquet")
    write(table.astype({"volume": "float64"}), tmp_path / "b.parquet")
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert "column volume is int64 in a.parquet and double in b.parquet" in str(caught.value)


def test_only_needed_columns_are_read(tmp_path: Path) -> None:
    table = bars()
    table["comment"] = "x"
    assert read_source(str(write(table, tmp_path / "b.parquet")), ["timestamp", "close"]).table.column_names == ["timestamp", "close"]


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "text.dat").write_text("hello world")
    (tmp_path / "cut.parquet").write_bytes(write(bars(), tmp_path / "whole.parquet").read_bytes()[:2000])
    write(bars().iloc[:0], tmp_path / "none.parquet")
    (tmp_path / "folder").mkdir()
    (tmp_path / "nested" / "day.parquet").mkdir(parents=True)
    for name, words in (
        ("empty.parquet", "is empty (0 bytes)"),
        ("text.dat", "neither Parquet nor CSV"),
        ("cut.parquet", "damaged"),
        ("none.parquet", "holds no rows"),
        ("folder", "holds no *.parquet"),
        ("nested", "day.parquet is a folder itself"),
        ("whole.parque", "did you mean"),
        ("demo:nothing", ""),
    ):
        path = name if name.startswith("demo:") else str(tmp_path / name)
        with pytest.raises(DataError) as caught:
            load(path)
        assert name in str(caught.value)
        assert words in str(caught.value)


def test_the_fingerprint_is_of_content_and_settings(tmp_path: Path) -> None:
    table = bars()
    first = load_table(table, tmp_path).fingerprint
    (tmp_path / "elsewhere").mkdir()
    assert load_table(table, tmp_path / "elsewhere").fingerprint == first
    assert load(tmp_path / "bars.parquet", "data.validation_fraction=0.3").fingerprint != first
    table.loc[3, "close"] = table.loc[3, "open"]
    assert load_table(table, tmp_path).fingerprint != first
