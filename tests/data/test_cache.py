"""Prepared data that is kept: the same as what is made in memory, used when it is whole and of the same files, and not otherwise."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.data.builders import bars, load, write
from tft_exp.data import arrays, panel, source
from tft_exp.data.cache import MANIFEST
from tft_exp.data.dataset import Dataset
from tft_exp.data.packing import packed_rows
from tft_exp.data.runs import Runs
from tft_exp.errors import DataError

ROLES = ["data.observed_categorical=[mood]", "data.static_real=[fee]", "data.static_categorical=[sector]", "data.test_fraction=0.1"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    table = bars(400, ("A", "B", "C")).assign(fee=1.0, sector="tech")
    table["mood"] = np.where(table["close"] > table["open"], "up", "down")
    table.loc[700:, "timestamp"] += pd.Timedelta("2h")
    return write(table, tmp_path / "bars.parquet")


def kept(path: Path, *overrides: str, features: str = "ohlcv") -> Dataset:
    """The data set by way of a cache beside the file."""
    cache = [f"data.cache={path.parent / 'cache'}", "data.cache_from_mib=0"]
    return load(path, "data.max_gap=5min", *ROLES, *cache, *overrides, features=features)


def entries(path: Path) -> list[Path]:
    return [found for found in (path.parent / "cache").iterdir() if found.is_dir()]


def entry(path: Path) -> Path:
    (only,) = entries(path)
    return only


def assert_same(one: Dataset, other: Dataset) -> None:
    ours, theirs = packed_rows(one.rows), packed_rows(other.rows)
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        assert values.dtype == theirs[name].dtype, name
        assert np.array_equal(values, theirs[name]), name
    assert torch.equal(one.training_rows, other.training_rows)
    for name in ("sizes", "roles", "report", "preprocessing", "fingerprint", "source_fingerprint", "entity_names", "cuts"):
        assert getattr(one, name) == getattr(other, name), name
    assert (one.rows.lookback, one.rows.horizon) == (other.rows.lookback, other.rows.horizon)


def made_as(folder: Path) -> int:
    """What another folder of that name, made while this one was there, does not have."""
    return folder.stat().st_ino


@pytest.mark.parametrize("features", ["none", "ohlcv", "ohlcv_225"])
def test_what_is_kept_is_what_is_made_in_memory(features: str, path: Path) -> None:
    in_memory = load(path, "data.max_gap=5min", *ROLES, "data.cache=null", features=features)
    first = kept(path, features=features)
    made = made_as(entry(path))
    second = kept(path, features=features)
    assert made_as(entry(path)) == made
    assert_same(in_memory, first)
    assert_same(in_memory, second)
    windows = in_memory.rows.windows["validation"]
    assert torch.equal(in_memory.rows.gather(Runs(windows)).target, second.rows.gather(Runs(windows)).target)


def test_a_tensor_that_is_written_to_changes_nothing_on_the_disk(path: Path) -> None:
    dataset = kept(path)
    target = dataset.rows.tensors.target
    before = target.clone()
    target.zero_()
    assert torch.equal(kept(path).rows.tensors.target, before)
    assert not target.any()
    dataset.rows.gather(Runs(dataset.rows.windows["train"][:1]))  # lets go of it, and reads the file again
    assert torch.equal(target, before)


def test_small_files_are_held_in_memory(path: Path) -> None:
    kept(path, "data.cache_from_mib=1")
    assert not (path.parent / "cache").exists()


def test_rows_in_blocks_are_as_in_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few rows cut entities, segments and warm-ups; only sums are rounded otherwise."""
    whole = load(path, "data.max_gap=5min", *ROLES, features="ohlcv_225")
    for module in (arrays, source):
        monkeypatch.setattr(module, "BLOCK", 37)
    parts = kept(path, features="ohlcv_225")
    ours, theirs = packed_rows(whole.rows), packed_rows(parts.rows)
    for name, values in ours.items():
        np.testing.assert_allclose(theirs[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
    assert parts.report == whole.report
    assert parts.preprocessing["vocabularies"] == whole.preprocessing["vocabularies"]
    assert parts.cuts == whole.cuts


def test_rows_out_of_order_are_sorted_in_files_too(path: Path) -> None:
    in_order = kept(path)
    write(pd.read_parquet(path).sample(frac=1, random_state=0), path)
    shuffled = packed_rows(kept(path).rows)
    for name, values in packed_rows(in_order.rows).items():
        assert np.array_equal(values, shuffled[name]), name


def changed_file(path: Path) -> None:
    table = pd.read_parquet(path)
    table.loc[5, "volume"] += 1
    write(table, path)


def touched_file(path: Path) -> None:
    told = path.stat()
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns + 1))


def flipped_bit(path: Path) -> None:
    file = entry(path) / "observed_reals.bin"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def flipped_bit_in_secret(path: Path) -> None:
    file = entry(path) / "observed_reals.bin"
    told = file.stat()
    flipped_bit(path)
    os.utime(file, ns=(told.st_atime_ns, told.st_mtime_ns))


def cut_array(path: Path) -> None:
    os.truncate(entry(path) / "target.bin", 100)


def lost_array(path: Path) -> None:
    (entry(path) / "windows_train.bin").unlink()


def cut_manifest(path: Path) -> None:
    file = entry(path) / MANIFEST
    file.write_text(file.read_text()[:-20])


def lost_manifest(path: Path) -> None:
    (entry(path) / MANIFEST).unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (changed_file, "the data's files changed"),
        (touched_file, "the data's files changed"),
        (flipped_bit, "observed_reals.bin is damaged"),
        (flipped_bit_in_secret, "observed_reals.bin is damaged"),
        (cut_array, "target.bin has 100 bytes and not 4,800"),
        (lost_array, "windows_train.bin is missing"),
        (cut_manifest, "manifest.json is damaged"),
        (lost_manifest, "manifest.json is missing"),
    ],
)
def test_what_is_not_whole_or_not_of_these_files_is_made_anew(
    spoil: Callable[[Path], None], words: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept(path)
    made = made_as(entry(path))
    spoil(path)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tft_exp"):
        again = kept(path)
    assert [words in record.getMessage() for record in caplog.records] == [True]
    assert made_as(entry(path)) != made
    assert_same(again, load(path, "data.max_gap=5min", *ROLES, features="ohlcv"))


def test_another_program_makes_it_anew(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    kept(path)
    monkeypatch.setattr(np, "__version__", "0.0")
    kept(path)
    assert "the program changed" in caplog.text


@pytest.mark.parametrize("override", ["data.validation_fraction=0.3", "data.scaling=all", "data.on_duplicates=keep_first"])
def test_another_configuration_has_an_entry_of_its_own(override: str, path: Path) -> None:
    first = kept(path)
    second = kept(path, override)
    assert len(entries(path)) == 2
    assert second.fingerprint != first.fingerprint
    assert_same(kept(path), first)


def test_where_it_is_kept_is_no_part_of_what_it_is(path: Path) -> None:
    assert kept(path).fingerprint == load(path, "data.max_gap=5min", *ROLES, "data.cache=null", features="ohlcv").fingerprint


def test_what_an_ended_process_left_is_swept_away(path: Path) -> None:
    kept(path)
    folder = entry(path)
    partial = folder.with_suffix(".partial")
    shutil.move(folder, partial)
    (partial / "target.bin").write_bytes(b"half")
    again = kept(path)
    assert not partial.exists()
    assert_same(again, load(path, "data.max_gap=5min", *ROLES, features="ohlcv"))


def test_errors_name_file_and_row_and_nothing_is_kept(path: Path) -> None:
    table = pd.read_parquet(path)
    table.loc[5, "high"] = 1.0
    write(table, path)
    with pytest.raises(DataError) as caught:
        kept(path)
    assert "high lies below low in 1 row: bars.parquet row 6 (A, 2024-01-01 00:05:00): high 1, low" in str(caught.value)
    assert entries(path) == []


def test_a_stray_word_is_found_whatever_part_it_stands_in(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (arrays, source):
        monkeypatch.setattr(module, "BLOCK", 37)
    table = pd.read_parquet(path)
    table["close"] = table["close"].astype(str)
    table.loc[500, "close"] = "n/a"
    write(table, path)
    with pytest.raises(DataError, match=r"'n/a' at bars\.parquet row 501"):
        kept(path)


def test_a_folder_that_cannot_be_written_is_named(path: Path) -> None:
    (path.parent / "cache").write_text("a file")
    with pytest.raises(DataError, match=r"prepared data cannot be kept in .*cache") as caught:
        kept(path)
    assert "data.cache=null" in str(caught.value)


def made_in(path: Path, barrier: object, answers: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    dataset = kept(path)
    answers.put((made_as(entry(path)), float(dataset.rows.tensors.target.double().sum())))  # type: ignore[attr-defined]


def test_of_two_processes_one_makes_it_and_the_other_waits(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(2), context.Queue()
    processes = [context.Process(target=made_in, args=(path, barrier, answers)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert found[0] == found[1]
    assert found[0][0] == made_as(entry(path))


def test_medians_of_a_long_entity_are_of_rows_all_over_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel, "SAMPLED_ROWS", 30)
    monkeypatch.setattr(panel, "SAMPLED_ROWS_OF_EACH", 10)
    table = pd.read_parquet(path)
    table.loc[333, ["open", "high", "low", "close"]] = 1e6
    write(table, path)
    warnings = kept(path).report.warnings
    assert any("close: 1 values" in warning and "bars.parquet row 334 (A, " in warning for warning in warnings)
    assert kept(path).report.median_step == "00:01:00"
