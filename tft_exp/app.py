"""The Hydra application behind `tft-exp train`: jobs from the command line, their outcomes to the terminal."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tft_exp.compose import VERSION_BASE, compose_config, conf_dir, expand_sweep, explain, register_schema, to_config
from tft_exp.config import TrackingConfig
from tft_exp.errors import ConfigError, UserError
from tft_exp.startup import importing
from tft_exp.sweep.jobs import Ended, apart, objectives, warm_up
from tft_exp.termination import listen

if TYPE_CHECKING:
    from tft_exp.experiment import Outcome

log = logging.getLogger("tft_exp")


class JobFailed(Exception):
    """A job of a sweep failed; it has been reported. Carries no traceback, whose frames would keep the model alive."""


class Application:
    """Runs jobs that Hydra composes, and remembers what became of them."""

    def __init__(self) -> None:
        self.sweep_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        self.outcomes: list[Outcome] = []  # of the jobs that ran in this process
        self.ended: list[Ended] = []  # of the jobs that ran in processes of their own
        self.tracking: TrackingConfig | None = None
        self.isolated = False  # by hydra/launcher=isolated
        self.on_open: Callable[[str | None, str], None] = _nobody_to_tell

    def job(self, composed: DictConfig) -> tuple[float, float] | None:
        """One job; its peak memory in MiB and validation loss, for a sweeper that searches, where it finished. A sweep goes on
        after a failed job; a single run shows its error as it is."""
        if HydraConfig.get().mode is not RunMode.MULTIRUN:
            return self._run(composed)
        try:
            return self._run(composed)
        except UserError as error:
            failure = str(error)
            log.error("failed: %s", failure, exc_info=self.isolated)  # the terminal is spared it then
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            log.exception("failed: the traceback is also in the run and in %s", Path(HydraConfig.get().runtime.output_dir) / "job.log")
        raise JobFailed(failure)

    def _run(self, composed: DictConfig) -> tuple[float, float] | None:
        config = to_config(composed)
        self.tracking = config.tracking
        with importing():
            from tft_exp.experiment import Job, run

        hydra_config = HydraConfig.get()
        multirun = hydra_config.mode is RunMode.MULTIRUN
        job = Job(
            choices={key: str(value) for key, value in hydra_config.runtime.choices.items()},
            overrides=list(hydra_config.overrides.task),
            composed_yaml=OmegaConf.to_yaml(composed),
            folder=Path(hydra_config.runtime.output_dir),
            sweep_id=self.sweep_id if multirun else None,
            number=int(hydra_config.job.num) if multirun else None,
            on_open=self.on_open,
            key=f"{self.sweep_id}-{hydra_config.job.num}" if self.isolated else None,
        )
        outcome = run(config, job)
        self.outcomes.append(outcome)
        if not self.isolated:
            log.info(_outcome_line(outcome))
        return objectives(outcome.summary) if outcome.outcome == "finished" else None


def _nobody_to_tell(run_id: str | None, name: str) -> None:
    """Of a run that nobody listens to."""


def train(arguments: Sequence[str]) -> int:
    """Run `tft-exp train` with these arguments; returns the exit code.

    0: every job ended, finished or out of memory, which is a result. 1: a job failed. 2: the configuration or the data
    cannot be used. 130: Ctrl-C.
    """
    if any(argument.startswith("--experimental-rerun") for argument in arguments):
        raise ConfigError("--experimental-rerun is not allowed: it unpickles a file", mend="run again from the run's config/overrides.yaml")
    multirun = any(argument in ("-m", "--multirun") for argument in arguments)
    if multirun and any(argument.startswith(("--cfg", "-c", "--info", "-i")) for argument in arguments):
        raise ConfigError("--multirun runs jobs, and --cfg and --info show a configuration", mend="leave out --multirun")
    register_schema()
    application = Application()
    listen(signal.SIGTERM, *([signal.SIGINT] if signal.getsignal(signal.SIGINT) is signal.default_int_handler else []))
    # Hydra prints errors in its own words and exits; with this it lets them come to where they are explained.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = [sys.argv[0], *arguments]
    code = 0
    if any(argument in ("-m", "--multirun") or argument.startswith("experiment=") for argument in arguments):
        # Hydra takes some tenths of a second to compose a job; the libraries are imported beside.
        threading.Thread(target=warm_up, daemon=True).start()
    try:
        hydra.main(config_path=str(conf_dir()), config_name="config", version_base=VERSION_BASE)(application.job)()
    except JobFailed:
        code = 1
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error) from error
    return max(code, _report(application, arguments))


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


# With these Hydra answers a question, and runs nothing.
QUESTIONS = ("--cfg", "-c", "--help", "-h", "--hydra-help", "--info", "-i", "--version", "--shell-completion", "-sc")


def _report(application: Application, arguments: Sequence[str]) -> int:
    """Show what came out, and the way to MLflow. Returns the exit code that the jobs ask for."""
    if any(argument.startswith(QUESTIONS) for argument in arguments if argument.startswith("-")):
        return 0
    tracking, single = application.tracking, bool(application.outcomes)
    if tracking is None:  # another launcher's processes had it
        overrides = [argument for argument in arguments if not argument.startswith("-")]
        tracking = compose_config([f"{key}={value}" for key, value in expand_sweep(overrides)[0].items()]).tracking
    where = "" if tracking.uri is None and tracking.home == TrackingConfig().home else f" {ui_options(tracking)}"
    if not single:
        apart("conclude", tracking, application.sweep_id, application.ended)
        where += f" --sweep {application.sweep_id}"
    print(f"\nSee it in MLflow:  {_program()} ui{where}")
    return int(any(ended.outcome in ("failed", "killed") for ended in application.ended))


def _program() -> str:
    """How this program is called from the shell: by its name where the shell finds it, else by its path."""
    return "tft-exp" if shutil.which("tft-exp") else os.path.relpath(sys.argv[0])


def ui_options(tracking: TrackingConfig) -> str:
    """The options with which `tft-exp ui` and `tft-exp compare` find the same store."""
    place = f"--home {tracking.home}" if tracking.uri is None else f"--uri {tracking.uri}"
    return place if tracking.experiment == TrackingConfig().experiment else f"{place} --experiment {tracking.experiment}"
