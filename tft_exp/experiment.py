"""One run, from a configuration to an outcome."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from omegaconf import OmegaConf

from tft_exp.config import Activations, AuditMode, BatchConfig, Compile, Config
from tft_exp.data.dataset import Dataset, load_dataset
from tft_exp.data.runs import batches_of
from tft_exp.errors import AuditError
from tft_exp.hardware import device_name, open_device_memory, resolve_device, slow_precision
from tft_exp.memory.audit import Finding
from tft_exp.memory.devices import DeviceMemory, is_out_of_memory
from tft_exp.memory.policies import idle_on
from tft_exp.memory.timeline import Timeline
from tft_exp.planning.prediction import Prediction, halved, plan_in_reserve, predict, propose_batch
from tft_exp.planning.shape import shape_of
from tft_exp.report.progress import Progress
from tft_exp.report.timeline import write_timeline
from tft_exp.tracking.provenance import code_fingerprint, code_state, installed_packages, run_fingerprint, version_tags
from tft_exp.tracking.recorder import Recorder, record_run
from tft_exp.tracking.spool import Destination
from tft_exp.training.assembly import assemble, runs_of, validation_windows
from tft_exp.training.checkpoint import load_weights, save_preprocessing, save_weights
from tft_exp.training.compiling import compile_seconds
from tft_exp.training.metrics import audit_metrics, epoch_metrics, quality_metrics, run_summary, shortage_metrics
from tft_exp.training.naive import naive_qualities
from tft_exp.training.optimizers import require_installed
from tft_exp.training.trainer import EpochResult, Quality, StateAudit

log = logging.getLogger("tft_exp")


@dataclass(frozen=True)
class Job:
    """What Hydra knows of a run beside its configuration."""

    choices: Mapping[str, str]  # group -> option
    overrides: Sequence[str]
    composed_yaml: str
    folder: Path
    sweep_id: str | None = None
    number: int | None = None
    reproduces: str | None = None  # a run's id
    on_open: Callable[[str | None, str], None] = lambda run_id, name: None  # is told the run's id and name
    key: str | None = None  # of a sweep's job, unique among all jobs


@dataclass(frozen=True)
class Outcome:
    """How a run ended: finished, or out_of_memory in `phase`."""

    run_id: str | None  # None where MLflow could not be reached since the run began
    name: str
    outcome: str
    phase: str | None
    summary: Mapping[str, float]


def run(config: Config, job: Job) -> Outcome:
    """Run one experiment and record it. Raises UserError where nothing could be run: of a sweep's job that is recorded, of a
    single run nothing is."""
    plan_in_reserve()
    try:
        ready = _prepare(config, job)
    except Exception:
        if job.sweep_id is None:
            raise
        with _record(config, job, {}):
            raise
    with _record(ready.config, job, ready.tags) as recorder:
        job.on_open(recorder.run_id, recorder.name)
        _write_inputs(recorder.folder, ready.config, job, ready.dataset, ready.diff)
        return _run(ready.config, ready.dataset, ready.memory, recorder)


@dataclass(frozen=True)
class Ready:
    """All that a run needs. `dataset` is None where the host's memory did not hold it."""

    config: Config
    dataset: Dataset | None
    memory: DeviceMemory
    tags: Mapping[str, str]
    diff: str  # uncommitted


def _prepare(config: Config, job: Job) -> Ready:
    require_installed(config.optimizer)
    device = resolve_device(config.device)
    memory = open_device_memory(config.device, device)
    dataset = _load(config)
    reason = idle_on(config.policy.residency.value, memory)
    if reason is not None:
        log.warning("note: %s", reason)
    if config.model.activations is Activations.offload and not memory.has_host:
        log.warning("note: model.activations=offload keeps activations where they are: host memory is the device's own")
    reason = slow_precision(config.trainer.precision, device)
    if reason is not None:
        log.warning("note: %s", reason)
    code_tags, diff = code_state()
    tags = {
        **code_tags,
        **version_tags(),
        "device": device_name(device, config.device),
        "memory_source": memory.source,
        "memory_quantity": memory.quantity,
        "code_fingerprint": code_fingerprint(),
        "threads": str(torch.get_num_threads()),
    }
    if job.reproduces is not None:
        tags["reproduces"] = job.reproduces
    if dataset is not None:
        tags |= {"data_fingerprint": dataset.fingerprint, "source_fingerprint": dataset.source_fingerprint}
        tags["fingerprint"] = run_fingerprint(config, dataset.source_fingerprint)
    if memory.capacity_mib is not None:
        tags["capacity_mib"] = f"{memory.capacity_mib:.0f}"
    if dataset is not None and config.batch.auto:
        config = propose_batch(config, shape_of(dataset))
        log.info("batch=auto: %s", _batch_text(config.batch))
    return Ready(config, dataset, memory, tags, diff)


def _record(config: Config, job: Job, tags: Mapping[str, str]) -> AbstractContextManager[Recorder]:
    tracking = config.tracking
    own = {"job_folder": str(job.folder)}
    if job.sweep_id is not None:
        own |= {"sweep_id": job.sweep_id, "job": str(job.number)}
    destination = Destination(tracking.uri, tracking.home, tracking.experiment)
    return record_run(destination, key=job.key, name=run_name(config, job), params=run_params(config, job), tags={**tags, **own})


def _load(config: Config) -> Dataset | None:
    """The data; None where the host's memory does not hold it, which is an outcome like any other out-of-memory."""
    try:
        return load_dataset(config.data, config.features, lookback=config.model.lookback, horizon=config.model.horizon)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return None


# Groups whose option stands in a run's name; the others are the same for most of a sweep's runs.
NAMED_GROUPS = ("model", "batch", "policy")


def run_name(config: Config, job: Job) -> str:
    """A name made of the run's choices, such as small-b64-keep-s0."""
    return "-".join([*(job.choices.get(group, "?") for group in NAMED_GROUPS), f"s{config.seed}"])


def run_params(config: Config, job: Job) -> dict[str, str]:
    """Few and short parameters, so that MLflow can group by them: the groups' options, the seed, single keys overridden."""
    groups = {
        group: option for group, option in job.choices.items() if not group.startswith("hydra/") and option not in (None, "None", "null")
    }
    keys = [override.split("=", 1) for override in job.overrides if "." in override.split("=", 1)[0]]
    singles = {key.lstrip("+"): value for key, value in keys if not key.startswith(("hydra.", "tracking."))}
    return {**groups, "seed": str(config.seed), **singles}


def _write_inputs(folder: Path, config: Config, job: Job, dataset: Dataset | None, diff: str) -> None:
    (folder / "config").mkdir(parents=True, exist_ok=True)
    (folder / "config" / "composed.yaml").write_text(job.composed_yaml)
    (folder / "config" / "resolved.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(config), resolve=True))
    (folder / "config" / "overrides.yaml").write_text(OmegaConf.to_yaml(list(job.overrides)))
    (folder / "environment.txt").write_text(installed_packages())
    if diff:
        (folder / "uncommitted.diff").write_text(diff)
    if dataset is not None:
        (folder / "data.txt").write_text(dataset.report.render())
        save_preprocessing(dataset.preprocessing, folder / "checkpoint")


@dataclass
class Progressed:
    """What an attempt has got to, also where memory then ran out."""

    prediction: Prediction | None = None
    naive: Quality | None = None  # the best of them
    naive_losses: dict[str, float] = field(default_factory=dict)
    results: list[EpochResult] = field(default_factory=list)
    extra: dict[str, float] = field(default_factory=dict)
    finding: Finding | None = None  # of the first epoch whose claim did not stand, else of the last

    def audited(self, audit: StateAudit, config: Config) -> None:
        """Remember an audit; a claim that does not stand is said once, or ends the run."""
        finding, worst = audit.finding, self.finding
        if worst is None or worst.verdict.stands:
            self.finding = finding
            self.extra |= audit_metrics(audit)
            if not finding.verdict.stands:
                log.warning("audit of policy=%s: %s", config.policy.residency.value, finding)
        if not finding.verdict.stands and config.audit is AuditMode.strict:
            raise AuditError(
                f"policy={config.policy.residency.value} does not do what it claims: {finding}",
                where="policy",
                mend="choose another policy, or let it pass with audit=warn",
            )


def _run(config: Config, dataset: Dataset | None, memory: DeviceMemory, recorder: Recorder) -> Outcome:
    """Attempt until an attempt ends other than in an out-of-memory that half the batch could mend (batch.auto), and record it."""
    tried = [_batch_text(config.batch)]
    while True:
        attempt = _attempt(config, dataset, memory, recorder)
        smaller = halved(config, attempt.phase) if config.batch.auto and attempt.phase is not None else None
        if smaller is None:
            break
        before, after = _batch_text(config.batch), _batch_text(smaller.batch)
        log.warning("%s: out of memory in %s with %s: begun anew with %s", recorder.name, attempt.phase, before, after)
        config = smaller
        tried.append(f"{after} after an out-of-memory in {attempt.phase}")
    if config.batch.auto:
        recorder.tag({"batch_auto": "; ".join(tried)})
        sizes = {"train": config.batch.train, "validation": config.batch.validation, "accumulate": config.batch.accumulate}
        attempt.progressed.extra |= {f"batch/{name}": float(size) for name, size in sizes.items()}
    return _conclude(attempt, memory, recorder)


def _batch_text(batch: BatchConfig) -> str:
    return f"{batch.train} x {batch.accumulate} windows a step, {batch.validation} a validation batch"


@dataclass(frozen=True)
class Attempt:
    """What an attempt came to: `phase` is the one in which memory ran out, and `error` what the device said then."""

    timeline: Timeline
    progressed: Progressed
    phase: str | None
    error: str | None


def _attempt(config: Config, dataset: Dataset | None, memory: DeviceMemory, recorder: Recorder) -> Attempt:
    """Train; an out-of-memory becomes an outcome with its phase, and frees everything that the attempt held."""
    timeline, progressed = Timeline(memory), Progressed()
    phase = None if dataset is not None else "data"
    if dataset is not None:
        progressed.prediction = predict(config, shape_of(dataset))
    message: str | None = None
    # Garbage is collected around every validation, to see who still holds the optimizer. What the libraries made so far
    # is set aside: going through it took 0.3 s a time.
    gc.freeze()
    try:
        if dataset is not None:
            progressed.naive, progressed.naive_losses = _naive(config, dataset, recorder)
            with memory.attach():
                _train(config, dataset, timeline, recorder, progressed)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        ended = timeline.interrupted
        phase = ended.phase if ended else "between phases" if timeline.records else "naive forecasts"
        message = str(error)
    finally:
        gc.unfreeze()
        write_timeline(timeline.records, memory, recorder.folder, recorder.name)
        if progressed.finding is not None:
            recorder.tag({"audit": progressed.finding.verdict.value, "audit_finding": str(progressed.finding)})
    if phase is not None:
        # The exception held the frames that held the model; out here it is gone, and with it what they held.
        memory.settle()
        memory.clear_cache()
    return Attempt(timeline, progressed, phase, message)


def _conclude(attempt: Attempt, memory: DeviceMemory, recorder: Recorder) -> Outcome:
    """Write what stands for the whole run."""
    records, progressed = attempt.timeline.records, attempt.progressed
    if attempt.phase is not None:
        recorder.outcome = "out_of_memory"
        recorder.tag({"out_of_memory_phase": attempt.phase, **({"error": attempt.error} if attempt.error else {})})
        if memory.shortage is not None:
            progressed.extra |= shortage_metrics(memory.shortage)
    highest = max(records, key=lambda record: record.peak.allocated_mib, default=None)
    if highest is not None and highest.peak.makeup:
        recorder.tag({"peak_makeup": f"{highest.phase}: {highest.peak.makeup_text}"})
        log.info("%s: at the peak of %s: %s", recorder.name, highest.phase.replace("_", " "), highest.peak.makeup_text)
    if progressed.prediction is not None:
        recorder.tag({"predicted_outcome": progressed.prediction.plan.outcome})
        progressed.extra |= progressed.prediction.metrics(records)
    summary = run_summary(progressed.results, records, progressed.naive, memory.quantity) | progressed.extra
    recorder.log({f"summary/{key}": value for key, value in summary.items()} | progressed.naive_losses)
    return Outcome(recorder.run_id, recorder.name, recorder.outcome, attempt.phase, summary)


def _naive(config: Config, dataset: Dataset, recorder: Recorder) -> tuple[Quality, dict[str, float]]:
    """The best of the naive forecasts over the validation windows, by its loss, and the losses of all."""
    validation = validation_windows(config, dataset.rows)
    naive = naive_qualities(dataset.rows, validation, torch.tensor(config.model.quantiles), config.data.season_length)
    best = min(naive, key=lambda name: naive[name].loss)
    recorder.tag({"best_naive": best})
    return naive[best], {f"naive/{name}_loss": quality.loss for name, quality in naive.items()}


def _train(config: Config, dataset: Dataset, timeline: Timeline, recorder: Recorder, progressed: Progressed) -> None:
    """Train to the end, recording every epoch and keeping the best weights."""
    memory = timeline.memory
    assembled = assemble(config, dataset.rows, dataset.sizes, timeline)
    trainer, rows, train, validation = assembled.trainer, assembled.rows, assembled.train, assembled.validation
    model = trainer.model
    if progressed.prediction is not None:
        progressed.prediction = progressed.prediction.measured_from(timeline.records[0], memory)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    progressed.extra["parameters"] = float(parameters)
    log.info(
        "%s on %s: %s parameters, %s training and %s validation windows",
        recorder.name,
        device_name(memory.device, config.device),
        f"{parameters:,}",
        f"{len(train):,}",
        f"{sum(alike.count for alike in validation):,}",
    )
    checkpoint = recorder.folder / "checkpoint"
    batches = {"train": trainer.batches(len(train))[0], "validation": batches_of(validation, config.batch.validation)}
    with Progress(recorder.name, config.trainer.max_epochs, batches) as progress:
        trainer.on_batch = progress.advance
        trainer.on_audit = lambda audit: progressed.audited(audit, config)
        for result in trainer.epochs(rows.gather, train, validation):
            progressed.results.append(result)
            metrics = epoch_metrics(result, memory.quantity)
            if progressed.prediction is not None:
                metrics |= {f"memory/{key}": value for key, value in progressed.prediction.metrics(result.phases).items()}
            recorder.log(metrics, step=result.epoch + 1)
            progress.epoch(result.epoch + 1, metrics)
            if result.improved:
                save_weights(model, checkpoint)
    if config.model.compile is not Compile.none:
        progressed.extra["compile_seconds"] = compile_seconds()
        log.info("%s: compiling took %.1f s, most of it in the first epoch", recorder.name, compile_seconds())
    if len(rows.windows["test"]):
        load_weights(model, checkpoint)
        # As validation has it: without the state where the policy takes it away, because no more than that was seen to fit.
        with trainer.policy.around_validation(trainer.owner, model, memory) as move, timeline.phase("test", len(progressed.results)):
            test = trainer.evaluate(rows.gather, runs_of(config, rows, "test"), move)
        progressed.extra |= quality_metrics(test, "test_")
