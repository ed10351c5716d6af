"""The Hydra application behind `tft-exp train`: jobs from the command line, their outcomes to the terminal."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tft_exp.compose import VERSION_BASE, conf_dir, explain, register_schema, to_config
from tft_exp.config import TrackingConfig
from tft_exp.errors import ConfigError, Killed, UserError
from tft_exp.startup import importing

if TYPE_CHECKING:
    from tft_exp.experiment import Outcome

log = logging.getLogger("tft_exp")


class JobFailed(Exception):
    """A job of a sweep failed; it has been reported. Carries no traceback, whose frames would keep the model alive."""


class Application:
    """Runs jobs that Hydra composes, and remembers what became of them."""

    def __init__(self) -> None:
        self.sweep_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        self.outcomes: list[Outcome] = []
        self.failures: list[str] = []
        self.tracking: TrackingConfig | None = None
        self.multirun = False

    def job(self, composed: DictConfig) -> None:
        """One job. A sweep goes on after a failed one; a single run shows its error as it is."""
        self.multirun = HydraConfig.get().mode is RunMode.MULTIRUN
        if not self.multirun:
            self._run(composed)
            return
        try:
            self._run(composed)
            return
        except UserError as error:
            failure = str(error)
            log.error("failed: %s", failure)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            log.exception("failed: the traceback is also in the run and in %s", Path(HydraConfig.get().runtime.output_dir) / "job.log")
        self.failures.append(f"job {HydraConfig.get().job.num} ({HydraConfig.get().job.override_dirname or 'no overrides'}): {failure}")
        raise JobFailed(failure)

    def _run(self, composed: DictConfig) -> None:
        config = to_config(composed)
        self.tracking = config.tracking
        with importing():
            from tft_exp.experiment import Job, run

        hydra_config = HydraConfig.get()
        job = Job(
            choices={key: str(value) for key, value in hydra_config.runtime.choices.items()},
            overrides=list(hydra_config.overrides.task),
            composed_yaml=OmegaConf.to_yaml(composed),
            folder=Path(hydra_config.runtime.output_dir),
            sweep_id=self.sweep_id if self.multirun else None,
            number=hydra_config.job.num if self.multirun else None,
        )
        outcome = run(config, job)
        self.outcomes.append(outcome)
        log.info(_outcome_line(outcome))


def train(arguments: Sequence[str]) -> int:
    """Run `tft-exp train` with these arguments; returns the exit code.

    0: every job ended, finished or out of memory, which is a result. 1: a job failed. 2: the configuration or the data
    cannot be used. 130: Ctrl-C.
    """
    if any(argument.startswith("--experimental-rerun") for argument in arguments):
        raise ConfigError("--experimental-rerun is not allowed: it unpickles a file", mend="run again from the run's config/overrides.yaml")
    register_schema()
    application = Application()
    signal.signal(signal.SIGTERM, _on_terminate)
    # Hydra prints errors in its own words and exits; with this it lets them come to where they are explained.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = [sys.argv[0], *arguments]
    code = 0
    try:
        hydra.main(config_path=str(conf_dir()), config_name="config", version_base=VERSION_BASE)(application.job)()
    except JobFailed:
        code = 1
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error) from error
    _report(application)
    return code


def _on_terminate(number: int, frame: FrameType | None) -> None:
    raise Killed(f"signal {number}")


def _outcome_line(outcome: Outcome) -> str:
    figures = outcome.summary
    if outcome.outcome == "out_of_memory":
        return f"{outcome.name}: out of memory in {outcome.phase}, after {figures.get('epochs', 0):.0f} epochs"
    return (
        f"{outcome.name}: {outcome.outcome}, validation loss {figures['val_loss']:.4f} (naive {figures['naive_loss']:.4f}), "
        f"{figures['epoch_seconds']:.2f} s an epoch{_predicted(outcome)}"
    )


def _predicted(outcome: Outcome) -> str:
    error = outcome.summary.get("prediction_error_pct")
    return "" if error is None else f", peak memory predicted {error:+.1f} %"


def _report(application: Application) -> None:
    tracking = application.tracking
    if tracking is None or not application.outcomes:
        return
    where = "" if tracking.uri is None and tracking.home == TrackingConfig().home else f" {ui_options(tracking)}"
    if application.multirun:
        from tft_exp.report.compare import group_runs, print_comparison
        from tft_exp.tracking.runs import load_sweep
        from tft_exp.tracking.store import open_store

        store = open_store(tracking.uri, tracking.home, tracking.experiment, create=False)
        sweep_id, runs = load_sweep(store, application.sweep_id)
        print()
        print_comparison(sweep_id, group_runs(runs))
        for failure in application.failures:
            print(f"failed: {failure}")
        where += f" --sweep {sweep_id}"
    print(f"\nSee it in MLflow:  {_program()} ui{where}")


def _program() -> str:
    """How this program is called from the shell: by its name where the shell finds it, else by its path."""
    return "tft-exp" if shutil.which("tft-exp") else os.path.relpath(sys.argv[0])


def ui_options(tracking: TrackingConfig) -> str:
    """The options with which `tft-exp ui` and `tft-exp compare` find the same store."""
    place = f"--home {tracking.home}" if tracking.uri is None else f"--uri {tracking.uri}"
    return place if tracking.experiment == TrackingConfig().experiment else f"{place} --experiment {tracking.experiment}"
