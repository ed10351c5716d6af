"""Behind `tft-exp reproduce`: a run composed again from its own overrides, run, and compared figure by figure."""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from omegaconf import OmegaConf
from rich import box
from rich.table import Table

from tft_exp.compose import compose_config
from tft_exp.config import Config
from tft_exp.data.source import find_files
from tft_exp.data.source import fingerprint as files_fingerprint
from tft_exp.errors import ConfigError, TrackingError
from tft_exp.experiment import Job, run
from tft_exp.report.compare import print_table
from tft_exp.tracking.provenance import code_fingerprint, code_state, version_tags
from tft_exp.tracking.runs import RecordedRun, load_recorded
from tft_exp.tracking.store import open_store

# What no two runs share: clocks, and the memory of a whole process.
UNREPEATABLE = ("seconds", "windows_per_second", "rss", "prediction_error", "predicted_peak", "freed_before_validation")
# Between machines, devices or versions sums are taken in another order, and training amplifies it.
LOSS_BOUND = 0.02
MEMORY_BOUND = 0.01


@dataclass(frozen=True)
class Compared:
    """A metric's largest difference over its steps, relative to the recorded value, and the bound that it must keep."""

    metric: str
    recorded: float
    now: float
    difference: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.difference <= self.bound


def reproduce(uri: str | None, home: str, experiment: str, run_id: str) -> int:
    """Run it again and say what is equal. Exit code 0: every figure that can repeat does, bit for bit where configuration,
    data, code and versions are the same and the device is a CPU, else within the bounds; 1: not. Raises UserError where the
    run cannot be composed again."""
    store = open_store(uri, home, experiment, create=False)
    recorded = load_recorded(store, run_id)
    with tempfile.TemporaryDirectory() as folder:
        config, composed = recompose(recorded, Path(folder), uri, home, experiment)
    differences = what_differs(recorded, config, composed)
    for difference in differences:
        print(f"differs: {difference}")
    exact = not differences and recorded.tags.get("device", "").startswith(("cpu", "virtual"))
    print("the same configuration, data, code and versions" if not differences else "so the figures need not be equal to the last bit")
    sys.stdout.flush()
    threads = recorded.tags.get("threads", "")
    if threads.isdecimal():
        torch.set_num_threads(int(threads))
    job = Job(
        choices=dict(recorded.params),
        overrides=recorded.overrides,
        composed_yaml=OmegaConf.to_yaml(OmegaConf.structured(config)),
        folder=Path(home) / "jobs" / time.strftime("%Y-%m-%d/%H-%M-%S"),
        reproduces=recorded.run_id,
    )
    outcome = run(config, job)
    if outcome.run_id is None:
        raise TrackingError("MLflow does not answer any more, and so nothing can be compared", mend="tft-exp send; tft-exp compare")
    again = load_recorded(store, outcome.run_id)
    same_end = recorded.tags.get("outcome") == outcome.outcome
    if not same_end:
        print(f"the recorded run ended as {recorded.tags.get('outcome')}, this one as {outcome.outcome}")
    found = compare_figures(recorded.histories, again.histories, exact=exact)
    _show(found, exact)
    missing = sorted(repeatable(recorded.histories) - repeatable(again.histories))
    if missing:
        print(f"not measured this time: {', '.join(missing)}")
    return 0 if same_end and not missing and all(one.holds for one in found) else 1


def recompose(recorded: RecordedRun, folder: Path, uri: str | None, home: str, experiment: str) -> tuple[Config, str]:
    """The configuration from the run's own overrides, under the schema of today, and the one that was recorded. The run's
    overrides are data: keys of Hydra itself, which name code, are refused."""
    for override in recorded.overrides:
        if override.lstrip("+~").startswith(("hydra.", "hydra/", "hydra@")):
            raise ConfigError(
                f"the run's override {override!r} is one of Hydra's own, which a run does not record",
                where="config/overrides.yaml",
                mend="the artifact was changed after the run; run it by hand if you trust it",
            )
    kept = [override for override in recorded.overrides if not override.startswith(("tracking.", "tracking="))]
    store = [f"tracking.home={home}", f"tracking.experiment={experiment}", *([f"tracking.uri={uri}"] if uri else [])]
    return compose_config([*kept, *store]), recorded.resolved


def what_differs(recorded: RecordedRun, config: Config, resolved: str) -> list[str]:
    """Configuration, data, code, versions, threads and device: each difference to the recorded run in words."""
    found = []
    now_text = OmegaConf.to_yaml(OmegaConf.structured(config), resolve=True)
    before, now = (_flat(cast("dict[str, object]", OmegaConf.to_container(OmegaConf.create(text)))) for text in (resolved, now_text))
    for key in sorted(before.keys() | now.keys()):
        if not key.startswith(("tracking.", "sweep.")) and before.get(key) != now.get(key):
            found.append(f"{key} was {before.get(key)!r}, is {now.get(key)!r}")
    source = recorded.tags.get("source_fingerprint")
    here = files_fingerprint(find_files(config.data.path))
    if source != here:
        found.append(f"the data in {config.data.path}: its bytes had the fingerprint {source}, have {here}")
    if recorded.tags.get("code_fingerprint") != code_fingerprint():
        code, _ = code_state()
        was = f"commit {recorded.tags.get('git_commit', '?')[:10]}{' and changes' if recorded.tags.get('git_dirty') == 'true' else ''}"
        found.append(f"the code: {was}, is {code.get('git_commit', 'an installed package')[:20]}")
    tags = version_tags()
    for key in [key for key in tags if key.startswith("version.")]:
        if recorded.tags.get(key) != tags[key]:
            found.append(f"{key.removeprefix('version.')} was {recorded.tags.get(key)}, is {tags[key]}")
    return found


def _flat(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def repeatable(histories: Mapping[str, Sequence[tuple[int, float]]]) -> set[str]:
    """Metrics that a second run must give again."""
    return {name for name in histories if not any(part in name for part in UNREPEATABLE)}


def compare_figures(
    recorded: Mapping[str, Sequence[tuple[int, float]]], again: Mapping[str, Sequence[tuple[int, float]]], *, exact: bool
) -> list[Compared]:
    """Every repeatable metric of both, step by step; a step that one of them lacks is an infinite difference."""
    found = []
    for name in sorted(repeatable(recorded) & repeatable(again)):
        before, now = dict(recorded[name]), dict(again[name])
        worst = max((_relative(before.get(step), now.get(step)) for step in before.keys() | now.keys()), default=0.0)
        bound = 0.0 if exact else MEMORY_BOUND if name.endswith("_mib") else LOSS_BOUND
        found.append(Compared(name, before[max(before)], now[max(now)], worst, bound))
    return found


def _relative(before: float | None, now: float | None) -> float:
    if before is None or now is None:
        return math.inf
    if before == now or (math.isnan(before) and math.isnan(now)):
        return 0.0
    return abs(now - before) / max(abs(before), 1e-12)


def _show(found: Sequence[Compared], exact: bool) -> None:
    if not found:
        raise TrackingError("the run has no figure that a second run could repeat", mend="it ended before its first epoch")
    lost = [one for one in found if not one.holds]
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title=f"{len(found)} figures, {len(found) - len(lost)} reproduced")
    for heading in ("figure", "recorded", "now", "difference", "bound"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for one in lost or [one for one in found if one.metric.startswith("summary/") and "loss" in one.metric]:
        table.add_row(one.metric, f"{one.recorded:.8g}", f"{one.now:.8g}", f"{one.difference:.2%}", "none" if exact else f"{one.bound:.0%}")
    print_table(table)
