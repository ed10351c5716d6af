"""Behind `tft-exp plan` and `tft-exp advise`: combinations from the command line, their plans to the terminal and into files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tft_exp.compose import compose_config, expand_sweep, options_of
from tft_exp.config import DeviceConfig
from tft_exp.errors import ConfigError
from tft_exp.planning.advice import advise as search
from tft_exp.planning.many import plan_all
from tft_exp.planning.plan import Assumed, CardSpeed, Planned
from tft_exp.report.advice import print_advice
from tft_exp.report.plans import draw_plans, print_plans, write_csv, write_json

WIDTH = 200  # of a table into a pipe or a file
# They change nothing about memory, and a sweep's combinations that differ in them alone are one plan.
IGNORED = ("seed",)


def plan(
    overrides: Sequence[str],
    *,
    assumed: Assumed,
    calibration: Path | None = None,
    jobs: int | None = None,
    json_file: Path | None = None,
    csv_file: Path | None = None,
    png_file: Path | None = None,
) -> int:
    """Plan every combination of the overrides and print the table. Returns the exit code, 2 where not one could be planned,
    and then nothing is written."""
    files = ((json_file, write_json), (csv_file, write_csv), (png_file, draw_plans))
    for path, _ in files:
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"there is no folder {path.parent}", where=str(path), mend="make it, or name another file")
    combinations = expand_sweep(overrides, ignored=IGNORED)
    planned = plan_with_progress(combinations, assumed, calibration, jobs)
    print_plans(planned, console())
    if all(one.plan is None for one in planned):
        return 2
    for path, write in files:
        if path is not None:
            write(planned, path)
            print(f"written: {path}")
    return 0


def advise(overrides: Sequence[str], *, assumed: Assumed, calibration: Path | None = None, jobs: int | None = None) -> int:
    """Search what a card can run, and say it in sentences with the commands. Returns the exit code, 2 where nothing fits."""
    combinations = expand_sweep(overrides, ignored=IGNORED)
    if len(combinations) > 1:
        raise ConfigError(
            f"advise starts from one configuration, and these are {len(combinations)}",
            where=" ".join(overrides),
            mend="give each key one value; advise varies batch, model, policy and optimizer itself",
        )
    asked = combinations[0]
    config = compose_config(list(overrides))
    if not _size_is_known(config.device):
        raise ConfigError(
            "no card's size is known", where="device", mend="name a card: device=cuda_4gb, or device=cuda device.capacity_mib=6144"
        )
    found = search(
        asked,
        (config.batch.train, config.batch.validation),
        models=options_of("model"),
        optimizers=options_of("optimizer"),
        plan_all=lambda wanted: plan_with_progress(wanted, assumed, calibration, jobs),
    )
    print_advice(found, (config.batch.train, config.batch.validation), console())
    return 0 if found.pareto or found.batch else 2


def _size_is_known(device: DeviceConfig) -> bool:
    if device.capacity_mib is not None:
        return True
    from tft_exp.hardware import planned_device

    return planned_device(device).capacity_mib is not None


def plan_with_progress(
    combinations: Sequence[dict[str, str]], assumed: Assumed, calibration: Path | None, jobs: int | None
) -> list[Planned]:
    """All plans, with a bar on the terminal."""
    extra, speed = read_calibration(calibration) if calibration is not None else ((), CardSpeed())
    columns = (TextColumn("planning"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("", total=len(combinations))
        return plan_all(combinations, extra=extra, assumed=assumed, speed=speed, jobs=jobs, on_done=lambda count: bar.advance(task, count))


def read_calibration(path: Path) -> tuple[tuple[str, ...], CardSpeed]:
    """What scripts/calibrate_cuda.py measured on a card: overrides of the device group, and speeds. Raises ConfigError."""
    try:
        content = json.loads(path.read_text())
        known = {field.name for field in fields(CardSpeed)}
        device = {key: float(value) for key, value in content["device"].items()}
        speed = CardSpeed(**{key: float(value) for key, value in content["speed"].items() if key in known})
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{path} is no calibration: {error}", where=str(path), mend="write one on a CUDA machine with scripts/calibrate_cuda.py"
        ) from error
    whole = {"context_mib", "cublas_workspace_kib"}
    return tuple(f"device.{key}={round(value) if key in whole else value}" for key, value in device.items()), speed


def console() -> Console:
    """The terminal; into a pipe or a file, wide enough for every column."""
    return Console() if sys.stdout.isatty() else Console(width=WIDTH)
