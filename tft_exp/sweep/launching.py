"""Behind `hydra/launcher=isolated`: compose every job, see what is done already, run the rest, show it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from tft_exp.compose import to_config
from tft_exp.config import OnFailure
from tft_exp.errors import ConfigError
from tft_exp.sweep.display import SweepDisplay
from tft_exp.sweep.jobs import Ended, Pool, SweepJob, Task, apart


def launch(
    context: HydraContext, task: TaskFunction, config: DictConfig, n_jobs: int, overrides: Sequence[Sequence[str]], first: int
) -> list[JobReturn]:
    """Run these jobs, of which there may be more later (a sweeper that searches), and enter them into `task`'s application.
    Raises ConfigError and TrackingError before any job, and what interrupts a sweep."""
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    application = task.__self__  # type: ignore[attr-defined]
    application.isolated = True
    labels = _labels(overrides, first)
    jobs = [_compose(context, config, chosen, first + index, labels[index]) for index, chosen in enumerate(overrides)]
    possible = [(job, job.config) for job in jobs if job.config is not None]
    display = SweepDisplay(len(jobs), first)
    if possible:
        settings = possible[0][1]
        application.tracking = settings.tracking
        prepared = apart("prepare", settings.tracking, [one for _, one in possible], application.sweep_id, settings.sweep.resume)
        found = {job.number: done for (job, _), done in zip(possible, prepared.finished, strict=True)}
        jobs = [replace(job, done=found.get(job.number)) for job in jobs]

        def on_lost(ended: Ended) -> Ended:
            found: Ended = apart("lost", ended, settings.tracking, application.sweep_id)
            return found

        pickled = pickle.dumps(Task(context, task))
        pool = Pool(pickled, display, on_lost, slots=n_jobs, gpus=prepared.gpus)
        to_run = [job for job in jobs if not job.refused and job.done is None]
        with display:
            for job in jobs:
                if job not in to_run:
                    display.ended(_not_run(job))
            try:
                ended = pool.run(to_run, stop_on_failure=settings.sweep.on_failure is OnFailure["stop"])
            except BaseException:
                apart("mend", settings.tracking)
                raise
    by_number = {one.number: one for one in ended} if possible else {}
    all_ended = [by_number.get(job.number) or _not_run(job) for job in jobs]
    application.ended += all_ended
    return [_returned(one) for one in all_ended]


def _labels(overrides: Sequence[Sequence[str]], first: int) -> list[str]:
    """Of each job the overrides that not all have, or its number."""
    same = set.intersection(*(set(chosen) for chosen in overrides)) if len(overrides) > 1 else set()
    return [" ".join(one for one in chosen if one not in same) or f"job {first + index}" for index, chosen in enumerate(overrides)]


def _compose(context: HydraContext, master: DictConfig, overrides: Sequence[str], number: int, label: str) -> SweepJob:
    composed = context.config_loader.load_sweep_config(master, list(overrides))
    with open_dict(composed):
        composed.hydra.job.id = composed.hydra.job.num = number
    chosen, refused = None, ""
    plain = composed.copy()
    with open_dict(plain):
        del plain["hydra"]
    HydraConfig.instance().set_config(composed)
    try:
        chosen = to_config(plain)
    except ConfigError as error:
        refused = str(error.what)
    return SweepJob(number, label, chosen, composed, refused)


def _not_run(job: SweepJob) -> Ended:
    if job.refused:
        return Ended(job.number, job.label, "skipped", reason=job.refused)
    assert job.done is not None
    return replace(job.done, number=job.number, label=job.label)


def _returned(ended: Ended) -> JobReturn:
    found = JobReturn()
    found.overrides = [ended.label]
    found.status = JobStatus.COMPLETED
    found.return_value = ended.objectives
    return found
