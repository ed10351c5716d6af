"""Rows that no model should be trained on: each is named, or left out and counted where the config asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.data.builders import bars, config_for, load, load_table, write
from tft_exp.data.reading import read_panel
from tft_exp.errors import ConfigError, DataError

RAGGED = Path(__file__).parent / "us_equities_daily_ragged.parquet"

Spoil = Callable[[pd.DataFrame], None]


def put(column: str, row: int, value: object) -> Spoil:
    def spoil(table: pd.DataFrame) -> None:
        if isinstance(value, float):
            table[column] = table[column].astype("float64")
        table.loc[row, column] = value

    return spoil


BAD = {
    "empty": (put("close", 5, np.nan), "close is empty or no finite number in 1 row"),
    "infinite": (put("open", 5, np.inf), "open is empty or no finite number in 1 row"),
    "high below low": (put("high", 5, 1.0), "high lies below low in 1 row"),
    "close above high": (put("close", 5, 1e6), "high lies below close in 1 row"),
    "open below low": (put("open", 5, 1.0), "open lies below low in 1 row"),
    "negative volume": (put("volume", 5, -1), "volume is negative in 1 row"),
    "no time": (put("timestamp", 5, pd.NaT), "timestamp is empty in 1 row"),
    "no entity": (put("symbol", 5, None), "symbol is empty in 1 row"),
}


@pytest.mark.parametrize(("spoil", "words"), BAD.values(), ids=BAD.keys())
def test_a_bad_row_is_an_error_or_a_counted_repair(spoil: Spoil, words: str, tmp_path: Path) -> None:
    table = bars()
    spoil(table)
    with pytest.raises(DataError) as caught:
        load_table(table, tmp_path)
    assert words in str(caught.value)
    assert "bars.parquet row 6" in str(caught.value)
    assert "data.on_bad_rows=drop" in str(caught.value)
    dropped = load_table(table, tmp_path, "data.on_bad_rows=drop").report
    assert dropped.rows_used == 119
    assert any(repair.rows == 1 and repair.what in f"dropped: {words}" for repair in dropped.repairs)
    assert words.rpartition(" in ")[0] in dropped.render()


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    table = bars()
    put("volume", 7, -3)(table)
    put("close", 9, np.nan)(table)
    put("symbol", 11, None)(table)
    put("timestamp", 13, pd.Timestamp("1816-03-29", tz="UTC"))(table)
    table["sector"] = np.where(np.arange(120) < 60, "tech", "energy")
    table = pd.concat([table, table.iloc[[20]]], ignore_index=True)
    with pytest.raises(DataError) as caught:
        load_table(table, tmp_path, "data.static_categorical=[sector]")
    for words in (
        "6 of 121 rows cannot be used",
        "volume is negative in 1 row: bars.parquet row 8 (A, 2024-01-01 00:07:00): volume -3",
        "close is empty or no finite number in 1 row: bars.parquet row 10 (A, 2024-01-01 00:09:00): close nan",
        "symbol is empty in 1 row: bars.parquet row 12 (no entity, 2024-01-01 00:11:00)",
        "1 row with a timestamp outside 1950-01-01 to 2100-01-01: bars.parquet row 14 (A, 1816-03-29 00:00:00)",
        "1 row repeats an entity and time (0 of them with other values): "
        "bars.parquet row 21 (A, 2024-01-01 00:20:00) and bars.parquet row 121",
        "sector changes within an entity, 1 time: first from 'tech' to 'energy' at bars.parquet row 61",
        "data.on_bad_rows=drop",
        "data.on_duplicates=keep_first",
    ):
        assert words in str(caught.value)


def test_rows_without_time_or_entity_are_named_as_such(tmp_path: Path) -> None:
    table = bars(60, ("A", "B"))
    put("timestamp", 4, pd.NaT)(table)
    with pytest.raises(DataError, match=r"row 5 \(A, no time\)"):
        load_table(table, tmp_path)
    with pytest.raises(DataError, match="symbol is empty in 120 rows") as caught:
        load_table(table.assign(symbol=pd.Series([None] * 120, dtype="string")), tmp_path, "data.on_bad_rows=drop")
    assert "no row would be left" in str(caught.value)


@pytest.mark.parametrize("nothing", [None, ""])
def test_an_entity_of_which_a_part_is_empty_is_none(nothing: str | None, tmp_path: Path) -> None:
    table = bars(60, ("A", "B")).assign(venue="X")
    table.loc[3, "venue"] = nothing
    with pytest.raises(DataError, match="symbol or venue is empty in 1 row"):
        load_table(table, tmp_path, "data.entities=[symbol,venue]")
    report = load_table(table, tmp_path, "data.entities=[symbol,venue]", "data.on_bad_rows=drop").report
    assert report.entity_names == ["A/X", "B/X"]
    assert report.rows_used == 119


def test_prices_at_or_below_zero_have_no_logarithm(tmp_path: Path) -> None:
    table = bars()
    table[["open", "high", "low", "close"]] -= 101.0
    assert load_table(table, tmp_path).report.rows_used == 120
    with pytest.raises(DataError, match="close is not above 0"):
        load_table(table, tmp_path, features="ohlcv")


def test_the_ragged_equities_hold_what_their_notes_say() -> None:
    with pytest.raises(DataError) as caught:
        load(RAGGED, features="ohlcv", lookback=60, horizon=10)
    message = str(caught.value)
    assert "18 of 11143 rows cannot be used" in message  # 11 with empty prices and 7 out of order
    empties = [int(line.split(" in ")[1].split()[0]) for line in message.splitlines() if "empty or no finite" in line]
    assert sum(empties) == 27
    assert "close lies below low in 5 rows" in message
    assert "(LNT, 2016-05-19 00:00:00): close 17.87, low 35.085" in message
    drop = [f"data.on_{what}=drop" for what in ("bad_rows", "short_entity", "unseen_entity")]
    repaired = load(RAGGED, *drop, features="ohlcv", lookback=60, horizon=10).report
    dropped = {repair.what: repair for repair in repaired.repairs}
    assert sum(repair.rows for what, repair in dropped.items() if "lies below" in what) == 7
    assert any("APTV" in repair.example for what, repair in dropped.items() if "too short" in what)
    assert any("BHF" in repair.example for what, repair in dropped.items() if "without a training window" in what)
    assert len(repaired.entity_names) == 11


def test_duplicates(tmp_path: Path) -> None:
    table = bars()
    again = table.iloc[[10]].copy()
    other = table.iloc[[20]].assign(close=lambda row: row["low"])
    doubled = pd.concat([table, again, other], ignore_index=True)
    with pytest.raises(DataError) as caught:
        load_table(doubled, tmp_path)
    assert "2 rows repeat an entity and time (1 of them with other values)" in str(caught.value)
    assert "row 11" in str(caught.value)
    assert "row 121" in str(caught.value)
    first, last = (load_table(doubled, tmp_path, f"data.on_duplicates=keep_{which}") for which in ("first", "last"))
    assert first.report.rows_used == last.report.rows_used == 120
    assert [repair.rows for repair in first.report.repairs] == [2]
    index = first.roles.observed_reals.index("close")

    def value(dataset, row: int) -> float:  # type: ignore[no-untyped-def]
        return float(
            dataset.rows.tensors.observed_reals[row, index] * dataset.rows.tensors.target_scale[0] + dataset.rows.tensors.target_location[0]
        )

    assert value(first, 20) == pytest.approx(table["close"][20], rel=1e-6)
    assert value(last, 20) == pytest.approx(table["low"][20], rel=1e-6)


@pytest.mark.parametrize("moment", ["1816-03-29", "2147-10-05"])
def test_implausible_dates_are_always_an_error(moment: str, tmp_path: Path) -> None:
    table = bars()
    table.loc[4, "timestamp"] = pd.Timestamp(moment, tz="UTC")
    with pytest.raises(DataError) as caught:
        load_table(table, tmp_path, "data.on_bad_rows=drop")
    assert "1 row with a timestamp outside 1950-01-01 to 2100-01-01: bars.parquet row 5 (A, " + moment in str(caught.value)
    assert "set data.earliest and data.latest" in str(caught.value)


def test_plausible_dates_begin_with_the_earliest_and_end_before_the_latest(tmp_path: Path) -> None:
    table = bars(2).assign(timestamp=pd.to_datetime(["2000-01-01 00:00:00.000000", "2009-12-31 23:59:59.999999"], utc=True).as_unit("us"))
    path, limits = write(table, tmp_path / "bars.parquet"), ["data.earliest='2000-01-01'", "data.latest='2010-01-01'"]
    assert read_panel(config_for(path, *limits).data, ()).rows == 2
    for row, step in ((0, -1), (1, 1)):
        beyond = table.copy()
        beyond.loc[row, "timestamp"] += pd.Timedelta(step, "us")
        write(beyond, path)
        with pytest.raises(DataError, match=rf"1 row with a timestamp outside .*row {row + 1} "):
            read_panel(config_for(path, *limits).data, ())


def test_a_static_value_must_not_change(tmp_path: Path) -> None:
    table = bars(symbols=("A", "B"))
    table["sector"] = np.where(table["symbol"] == "A", "tech", "energy")
    kept = load_table(table, tmp_path, "data.static_categorical=[sector]")
    assert kept.roles.static == ["sector", "entity"]
    assert kept.sizes.static_cardinalities == (3, 3)
    table.loc[50, "sector"] = "energy"
    with pytest.raises(DataError) as caught:
        load_table(table, tmp_path, "data.static_categorical=[sector]")
    assert "static column sector changes within an entity, 2 times: first from 'tech' to 'energy'" in str(caught.value)
    assert "row 51 (A" in str(caught.value)


def test_a_constant_target_is_refused(tmp_path: Path) -> None:
    table = bars()
    table["flat"] = 0.1
    with pytest.raises(DataError, match=r"the target flat of 1 entities \(A\) is constant in the training rows"):
        load_table(table, tmp_path, "data.target=flat", "data.on_constant_target=drop")
    pegged = bars(120, ("A", "peg"))
    pegged.loc[pegged["symbol"] == "peg", ["open", "high", "low", "close"]] = 15.6466
    with pytest.raises(DataError, match=r"of 1 entities \(peg\).*constant"):
        load_table(pegged, tmp_path)
    kept = load_table(pegged, tmp_path, "data.on_constant_target=drop").report
    assert kept.entity_names == ["A"]
    assert [(repair.rows, repair.example) for repair in kept.repairs] == [(120, "peg")]
    assert len(load_table(pegged, tmp_path, "data.scaling=all").report.entity_names) == 2


def test_an_outlier_is_stated_with_its_row(tmp_path: Path) -> None:
    table = bars()
    table.loc[30, ["open", "high", "low", "close"]] = 1e6
    report = load_table(table, tmp_path).report
    assert any("close: 1 values" in warning and "1e+06" in warning and "row 31" in warning for warning in report.warnings)
    assert not load_table(bars(), tmp_path).report.warnings


def test_a_split_that_was_not_applied_is_stated(tmp_path: Path) -> None:
    table = bars(120, ("cheap", "dear"))
    table.loc[50:119, ["open", "high", "low", "close"]] /= 3
    warnings = [warning for warning in load_table(table, tmp_path).report.warnings if warning.startswith("close: 1 step")]
    assert len(warnings) == 1
    assert f"from {table['close'][49]:g} to {table['close'][50]:g} at bars.parquet row 51 (cheap, " in warnings[0]
    # Over a gap a price may move.
    table.loc[50:119, "timestamp"] += pd.Timedelta("10h")
    assert not load_table(table, tmp_path, "data.max_gap=1h").report.warnings


def test_real_and_sparse_bars_give_no_warning(tmp_path: Path) -> None:
    assert not load("demo:es_fut_5s", "data.max_gap=60s", features="ohlcv", lookback=20, horizon=5).report.warnings
    sparse = bars().assign(dividend=lambda table: np.where(table.index == 60, 1.0, 0.0))
    assert not load_table(sparse, tmp_path, "data.observed_real=[dividend]").report.warnings


def test_an_outlier_is_one_of_its_own_entity(tmp_path: Path) -> None:
    """Beside an entity of a hundred times the price, a tenfold price of another is nothing to the table as a whole."""
    table = bars(120, ("A", "B"))
    table.loc[120:, ["open", "high", "low", "close"]] *= 100
    table.loc[30, "high"] *= 10
    assert any("high: 1 value" in warning and "row 31 (A, " in warning for warning in load_table(table, tmp_path).report.warnings)


@pytest.mark.parametrize("row", [9, 119], ids=["training", "validation"])
def test_a_value_beyond_float32_reaches_no_tensor(row: int, tmp_path: Path) -> None:
    table = bars().astype({"volume": "float64"})
    table.loc[row, "volume"] = 1e300
    with pytest.raises(DataError) as caught:
        load_table(table, tmp_path, "data.observed_real=[volume]")
    assert "volume holds values so large that float32 cannot hold them" in str(caught.value)
    assert f"row {row + 1} (A, " in str(caught.value)


def test_a_column_with_the_name_of_a_derived_input(tmp_path: Path) -> None:
    table = bars().assign(body=5.0, log_return=0.0)
    with pytest.raises(DataError, match=r"the column body has the name of an input that features.kind derives"):
        load_table(table, tmp_path, "data.observed_real=[body]", features="ohlcv")
    kept = load_table(table, tmp_path, features="ohlcv")
    assert kept.report.warnings == ["the target log_return is derived from the bars; the file's column of that name is not read"]
    assert kept.rows.tensors.target.std() > 0


@pytest.mark.parametrize(
    ("overrides", "features", "words"),
    [
        (["data.known_real=[close]"], "ohlcv", "from whose future that of the target log_return can be computed"),
        (["data.known_real=[time_of_day_sin]"], "ohlcv", "two inputs would have the name time_of_day_sin"),
        (["data.observed_categorical=[mood,mood]"], "none", "two inputs would have the name mood"),
        (["data.static_categorical=[entity]"], "none", "two inputs would have the name entity"),
    ],
)
def test_roles_that_cannot_be_meant(overrides: list[str], features: str, words: str, tmp_path: Path) -> None:
    table = bars().assign(time_of_day_sin=0.5, mood="calm", entity="A")
    with pytest.raises(ConfigError, match=words):
        load_table(table, tmp_path, *overrides, features=features)


def test_entities_of_several_columns(tmp_path: Path) -> None:
    table = bars(60, ("A", "B"))
    table["venue"] = np.where(np.arange(120) % 2 == 0, "X", "Y")
    dataset = load_table(table, tmp_path, "data.entities=[symbol,venue]")
    assert dataset.report.entity_names == ["A/X", "A/Y", "B/X", "B/Y"]
    assert [int((dataset.rows.tensors.target_location > 0).sum())] == [4]


def test_an_entity_too_short_for_a_window(tmp_path: Path) -> None:
    table = pd.concat([bars(120, ("A",)), bars(10, ("tiny",))], ignore_index=True)
    with pytest.raises(DataError) as caught:
        load_table(table, tmp_path)
    assert "1 of 2 entities are too short for one window of 11 rows" in str(caught.value)
    assert "tiny 10 rows" in str(caught.value)
    kept = load_table(table, tmp_path, "data.on_short_entity=drop")
    assert kept.report.entity_names == ["A"]
    assert [(repair.rows, repair.example) for repair in kept.report.repairs] == [(10, "tiny")]
    with pytest.raises(DataError, match="1 of 1 entities are too short"):
        load_table(bars(10), tmp_path, "data.on_short_entity=drop")


def test_an_entity_that_training_never_saw(tmp_path: Path) -> None:
    late = bars(60, ("late",)).assign(timestamp=lambda t: t["timestamp"] + pd.Timedelta("100min"))
    table = pd.concat([bars(200, ("A",)), late], ignore_index=True)
    with pytest.raises(DataError) as caught:
        load_table(table, tmp_path, "data.validation_fraction=0.5")
    assert "1 entities have no training window" in str(caught.value)
    assert "late" in str(caught.value)
    kept = load_table(table, tmp_path, "data.validation_fraction=0.5", "data.on_unseen_entity=drop")
    assert kept.report.entity_names == ["A"]
    assert kept.rows.tensors.heads.tolist() == [0]


def test_categories_that_training_never_saw_count_as_unknown(tmp_path: Path) -> None:
    table = bars()
    table["regime"] = np.where(np.arange(120) < 100, "calm", "wild")
    dataset = load_table(table, tmp_path, "data.observed_categorical=[regime]")
    assert dataset.preprocessing["vocabularies"]["regime"] == ["calm"]
    assert dataset.sizes.observed_cardinalities == (2,)
    assert dataset.rows.tensors.observed_categoricals[:, 0].tolist() == [1] * 100 + [0] * 20
    assert any("regime: 20 rows" in warning and "'wild'" in warning for warning in dataset.report.warnings)
