"""Write bars of many entities as one Parquet file of 16 columns, entity by entity, so that memory stays small whatever the size.

    .venv/bin/python scripts/make_rows.py rows.parquet                  # 100 million rows, some 8 GB
    .venv/bin/python scripts/make_rows.py rows.parquet --rows 1000000

The columns are timestamp, symbol, open, high, low, close, volume and nine signals. The same arguments give the same rows.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SIGNALS = tuple(f"signal_{number}" for number in range(1, 10))
MINUTE = np.timedelta64(60_000_000, "us")


def bars(symbol: str, rows: int, random: np.random.Generator) -> pa.Table:
    """One-minute bars of one entity, in order of time, with a night after every 390 of them."""
    close = 100.0 * np.exp(np.cumsum(random.normal(0.0, 1e-4, rows)))
    open_ = close * np.exp(random.normal(0.0, 5e-5, rows))
    minutes = np.arange(rows) + np.arange(rows) // 390 * (1440 - 390)
    columns = {
        "timestamp": pa.array(np.datetime64("2000-01-03T09:30", "us") + minutes * MINUTE, pa.timestamp("us", tz="UTC")),
        "symbol": pa.array([symbol] * rows).dictionary_encode(),
        "open": open_,
        "high": np.maximum(open_, close) * (1.0 + random.uniform(0.0, 1e-4, rows)),
        "low": np.minimum(open_, close) * (1.0 - random.uniform(0.0, 1e-4, rows)),
        "close": close,
        "volume": random.integers(1, 10_000, rows, dtype=np.int32),
    }
    return pa.table(columns | {name: random.standard_normal(rows, dtype=np.float32) for name in SIGNALS})


def write(path: Path, rows: int, entities: int, seed: int) -> None:
    """Write `rows` rows of `entities` entities, as evenly as it goes."""
    random = np.random.default_rng(seed)
    digits = math.ceil(math.log10(max(2, entities)))
    writer = None
    try:
        for number in range(entities):
            length = rows * (number + 1) // entities - rows * number // entities
            table = bars(f"S{number:0{digits}d}", length, random)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--entities", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write(arguments.path, arguments.rows, arguments.entities, arguments.seed)
    print(f"{arguments.path}: {arguments.rows:,} rows, {arguments.path.stat().st_size / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
