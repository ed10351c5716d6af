"""An epoch and a run as named figures: the names that MLflow, the table and the plots use."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tft_exp.memory.allocator import Shortage
from tft_exp.memory.devices import MIB
from tft_exp.memory.timeline import PhaseRecord
from tft_exp.training.trainer import EpochResult, Quality, StateAudit


def quality_metrics(quality: Quality, prefix: str) -> dict[str, float]:
    """`<prefix>loss`, and `<prefix>q_risk_p10` ... by quantile."""
    risks = {f"{prefix}q_risk_p{quantile * 100:.3g}": risk for quantile, risk in quality.q_risk.items()}
    return {f"{prefix}loss": quality.loss, **risks}


def phase_metrics(record: PhaseRecord, quantity: str) -> dict[str, float]:
    """Memory of one phase. `quantity` says what was read: allocated (a device's tensors) or rss (the process)."""
    named = {
        f"start_{quantity}_mib": record.start.allocated_mib,
        f"end_{quantity}_mib": record.end.allocated_mib,
        f"peak_{quantity}_mib": record.peak.allocated_mib,
        "end_reserved_mib": record.end.reserved_mib,
        "peak_reserved_mib": record.peak.reserved_mib,
        "end_driver_mib": record.end.driver_mib,
        "peak_host_mib": record.peak.host_mib,
    }
    return {f"memory/{record.phase}_{key}": value for key, value in named.items() if value is not None}


def audit_metrics(audit: StateAudit) -> dict[str, float]:
    """What was claimed and freed before a validation, and what of the optimizer's state the device still held in it."""
    return {
        "optimizer_state_mib": audit.state_mib,
        "state_in_validation_mib": audit.in_validation_mib,
        "audit/claimed_mib": audit.finding.claimed_mib,
        "audit/freed_mib": audit.finding.freed_mib,
    }


def shortage_metrics(shortage: Shortage) -> dict[str, float]:
    """The allocator's figures when memory ran out: what was asked for, what lived, what was reserved, the largest free block,
    and 1 where all of it would have fitted without gaps."""
    sizes = {"requested": shortage.requested, "allocated": shortage.allocated, "reserved": shortage.reserved}
    sizes |= {"largest_free": shortage.largest_free, "capacity": shortage.capacity}
    in_mib = {f"out_of_memory/{name}_mib": nbytes / MIB for name, nbytes in sizes.items()}
    return {**in_mib, "out_of_memory/is_fragmentation": float(shortage.is_fragmentation)}


def makeup_metrics(record: PhaseRecord) -> dict[str, float]:
    """What a phase's peak was made of, by kind, where the device knows."""
    return {f"makeup/{record.phase}_{kind.replace(' ', '_')}_mib": mib for kind, mib in (record.peak.makeup or {}).items()}


def epoch_metrics(result: EpochResult, quantity: str) -> dict[str, float]:
    """The metrics of one epoch, by their MLflow names."""
    return {
        # MLflow's page of compared runs shows the first metric that a run recorded.
        **quality_metrics(result.validation, "val/"),
        "train/loss": result.train_loss,
        "epoch/seconds": result.seconds,
        "epoch/train_seconds": result.phase("train").seconds,
        "epoch/validation_seconds": result.phase("validation").seconds,
        "epoch/policy_seconds": result.policy_seconds,
        "epoch/windows_per_second": result.windows_per_second,
        "epoch/learning_rate": result.learning_rate,
        "epoch/before_validation_seconds": result.phase("before_validation").seconds,
        "epoch/after_validation_seconds": result.phase("after_validation").seconds,
        **{f"memory/{key}": value for key, value in audit_metrics(result.audit).items()},
        "memory/freed_before_validation_mib": result.phase("before_validation").freed_mib,
        **{key: value for record in result.phases for key, value in phase_metrics(record, quantity).items()},
        **{key: value for record in result.phases for key, value in makeup_metrics(record).items()},
    }


def run_summary(results: Sequence[EpochResult], records: Sequence[PhaseRecord], naive: Quality | None, quantity: str) -> dict[str, float]:
    """What stands for a whole run, or for as much of it as there was before memory ran out.

    Speeds are medians that leave out the first epoch, which pays for warming up, where there are more. `skill` is one
    less the validation loss over that of the best naive forecast: 0 is no better than it.
    """
    summary = {"epochs": float(len(results)), **_peaks(records, quantity)}
    freed = [record.freed_mib for record in records if record.phase == "before_validation" and record.completed]
    if freed:
        summary["freed_before_validation_mib"] = statistics.median(freed)
    if not results or naive is None:
        return summary
    best = min(results, key=lambda result: result.validation.loss)
    settled = results[1:] or results
    if naive.loss > 0:
        summary["skill"] = 1.0 - best.validation.loss / naive.loss
    return {
        **summary,
        "epoch_seconds": statistics.median(result.seconds for result in settled),
        "policy_seconds": statistics.median(result.policy_seconds for result in settled),
        "last_val_loss": results[-1].validation.loss,
        "windows_per_second": statistics.median(result.windows_per_second for result in settled),
        **quality_metrics(best.validation, "val_"),
        **quality_metrics(naive, "naive_"),
    }


def _peaks(records: Sequence[PhaseRecord], quantity: str) -> dict[str, float]:
    peaks: dict[str, float] = {}
    for record in records:
        for key in (f"peak_{quantity}_mib", f"{record.phase}_peak_{quantity}_mib"):
            peaks[key] = max(peaks.get(key, 0.0), record.peak.allocated_mib)
        for key, mib in (("peak_reserved_mib", record.peak.reserved_mib), ("peak_host_mib", record.peak.host_mib)):
            if mib is not None:
                peaks[key] = max(peaks.get(key, 0.0), mib)
    return peaks
