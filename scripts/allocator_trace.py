"""How far the model of the caching allocator is from a real one: record a trace on a CUDA machine, compare it anywhere.

    python scripts/allocator_trace.py record trace.json model=base batch=b64 device=cuda     # needs a CUDA card
    python scripts/allocator_trace.py compare trace.json

The trace is torch's own memory history of two short epochs: every request and release with its address, every segment that the
allocator took or gave back. `compare` makes the same requests of tft_exp.memory.allocator and sets its reserved bytes
beside the recorded ones, event by event.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tft_exp.memory.allocator import Block, CachingAllocator
from tft_exp.memory.devices import MIB

# An event: action, address, bytes; the actions are torch's (torch/csrc/cuda/memory_snapshot.cpp).
Event = tuple[str, int, int]
SEGMENTS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


@dataclass(frozen=True)
class Comparison:
    """Reserved bytes of card and model over a trace."""

    requests: int
    peak_recorded: int
    peak_model: int
    largest_error: int
    mean_error: float

    def __str__(self) -> str:
        off = (self.peak_model - self.peak_recorded) / max(1, self.peak_recorded)
        return (
            f"{self.requests:,} requests. Peak reserved: card {self.peak_recorded / MIB:,.1f} MiB, model {self.peak_model / MIB:,.1f} MiB "
            f"({off:+.2%}). Off after an event by {self.mean_error / MIB:,.2f} MiB on the average, at most {self.largest_error / MIB:,.1f}."
        )


def compare(events: Sequence[Event], *, expandable: bool = False) -> Comparison:
    """Replay a trace. Raises ValueError where it releases what it did not allocate: a history that began too late."""
    model = CachingAllocator(1 << 60, expandable=expandable)
    blocks: dict[int, Block | None] = {}
    recorded = peak_recorded = requests = 0
    errors = []
    for action, address, nbytes in events:
        if action == "alloc":
            blocks[address] = model.allocate(nbytes)
            requests += 1
        elif action == "free_completed":
            if address not in blocks:
                raise ValueError(
                    f"the trace releases address {address:#x}, which it did not allocate: record from the start of the process"
                )
            model.release(blocks.pop(address))
        elif action in SEGMENTS:
            recorded += SEGMENTS[action] * nbytes
            peak_recorded = max(peak_recorded, recorded)
            # A history has no event for a cleared cache, only for the segments that went.
            if SEGMENTS[action] < 0 and model.reserved > recorded:
                model.flush()
            continue  # the request that took the segment is the next event
        errors.append(abs(model.reserved - recorded))
    return Comparison(requests, peak_recorded, model.peak_reserved, max(errors, default=0), sum(errors) / max(1, len(errors)))


def record(path: Path, overrides: list[str]) -> None:
    """Two short epochs on a CUDA card under torch's memory history."""
    import torch

    from tft_exp.compose import compose_config
    from tft_exp.data.dataset import load_dataset
    from tft_exp.hardware import resolve_device
    from tft_exp.memory.devices import open_memory
    from tft_exp.memory.timeline import Timeline
    from tft_exp.training.assembly import assemble

    config = compose_config(["trainer=quick", *overrides])
    device = resolve_device(config.device)
    if device.type != "cuda":
        raise SystemExit(f"a trace needs a CUDA card, and this would run on {device.type}; compare reads a trace anywhere")
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=5_000_000)
    memory = open_memory(device)
    dataset = load_dataset(config.data, config.features, lookback=config.model.lookback, horizon=config.model.horizon)
    assembled = assemble(config, dataset.rows, dataset.sizes, Timeline(memory))
    validation = next(assembled.validation[0].parts(2 * config.batch.validation))
    list(assembled.trainer.epochs(assembled.rows.gather, assembled.train, [validation]))
    trace: list[dict[str, Any]] = torch.cuda.memory._snapshot()["device_traces"][device.index or 0]
    events = [
        (entry["action"], entry["addr"], entry["size"]) for entry in trace if entry["action"] in {"alloc", "free_completed", *SEGMENTS}
    ]
    path.write_text(
        json.dumps(
            {
                "card": torch.cuda.get_device_name(device),
                "torch": torch.__version__,
                "expandable_segments": any(action == "segment_map" for action, _, _ in events),
                "events": events,
            }
        )
    )
    print(f"{len(events):,} events of {torch.cuda.get_device_name(device)} in {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("overrides", nargs="*", help="of tft-exp train")
    options = parser.parse_args()
    if options.what == "record":
        record(options.file, options.overrides)
        return
    trace = json.loads(options.file.read_text())
    print(f"{trace['card']}, torch {trace['torch']}: {compare(trace['events'], expandable=trace['expandable_segments'])}")


if __name__ == "__main__":
    main()
