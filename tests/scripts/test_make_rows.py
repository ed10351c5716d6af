"""The rows that the benchmark of large data reads: as many as asked for, well-formed, and the same each time."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq

from tests.data.builders import load


def test_rows_are_as_many_as_asked_for_and_always_the_same(script: ModuleType, tmp_path: Path) -> None:
    for name in ("one", "two"):
        script.write(tmp_path / f"{name}.parquet", rows=1001, entities=3, seed=5)
    table = pq.read_table(tmp_path / "one.parquet")
    assert (table.num_rows, table.num_columns) == (1001, 16)
    assert table.equals(pq.read_table(tmp_path / "two.parquet"))
    script.write(tmp_path / "two.parquet", rows=1001, entities=3, seed=6)
    assert not table.equals(pq.read_table(tmp_path / "two.parquet"))
    report = load(tmp_path / "one.parquet", "data.max_gap=1min", f"data.observed_real=[{','.join(script.SIGNALS)}]").report
    assert (report.rows_used, report.entity_names, report.segments) == (1001, ["S0", "S1", "S2"], 3)
    assert not report.warnings
