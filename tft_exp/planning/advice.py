"""What to run on a card: searched by plans. The largest batch, the cheapest policy, the largest model, and what is not dominated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tft_exp.planning.plan import Plan, Planned, Verdict

# The residencies that are worth choosing: the control is none, and clearing the cache frees no tensor.
POLICIES = ("keep", "offload", "recreate", "offload_always", "cpu_validation")
# Plain SGD is leaner and quicker than all of them, and another optimizer: it is not held against them unless it is asked for.
OTHERS = ("sgd", "sgd_momentum")
SIZES = tuple(4**power for power in range(9))
BETWEEN = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5)  # of the last of them that fits

PlanAll = Callable[[Sequence[dict[str, str]]], list[Planned]]


@dataclass(frozen=True)
class Fitting:
    """A combination and its plan, which fits."""

    choices: dict[str, str]
    plan: Plan


@dataclass(frozen=True)
class Advice:
    """`batch` is the largest that fits, `beyond` the least that was tried and does not; `validation` the largest validation batch
    for the training batch that was asked for, where the one asked for does not fit; `policies` those that fit, the cheapest
    first; `models` those that fit, the largest first; `pareto` what no other choice of policy and optimizer beats in memory
    and time both, the leanest first."""

    asked: Planned
    batch: Fitting | None
    beyond: Planned | None
    validation: Fitting | None
    policies: tuple[Fitting, ...]
    models: tuple[Fitting, ...]
    pareto: tuple[Fitting, ...]


def advise(
    asked: dict[str, str],
    batch: tuple[int, int],
    *,
    models: Sequence[str],
    optimizers: Sequence[str],
    plan_all: PlanAll,
) -> Advice:
    """Search around what was asked for; `batch` is its training and its validation batch, whose ratio stays."""
    train, validation = batch
    ratio = validation / train

    def sized(size: int) -> dict[str, str]:
        return {**asked, "batch.train": str(size), "batch.validation": str(max(1, round(size * ratio)))}

    compared = [optimizer for optimizer in optimizers if optimizer not in OTHERS or optimizer == asked.get("optimizer")]
    wanted = {
        "asked": [asked],
        "batch": [sized(size) for size in SIZES],
        "models": [{**asked, "model": model} for model in models],
        "pareto": [{**asked, "policy": policy, "optimizer": optimizer} for policy in POLICIES for optimizer in compared],
        "policies": [{**asked, "policy": policy} for policy in POLICIES],
    }
    found = dict(zip(wanted, _in_parts(plan_all, list(wanted.values())), strict=True))
    largest, beyond = _largest_batch(found["batch"], sized, plan_all)
    by_cost = sorted(fitting(found["policies"]), key=lambda one: one.plan.window_seconds)
    by_size = sorted(fitting(found["models"]), key=lambda one: -one.plan.parameters)
    asked_for = found["asked"][0]
    smaller: list[Fitting] = []
    if asked_for.plan is not None and asked_for.plan.verdict in (Verdict.out_of_memory, Verdict.tight):
        halves = [validation >> shift for shift in range(1, validation.bit_length())]
        smaller = fitting(plan_all([{**asked, "batch.validation": str(size)} for size in halves]))
    return Advice(
        asked=asked_for,
        batch=largest,
        beyond=beyond,
        validation=smaller[0] if smaller else None,
        policies=tuple(by_cost),
        models=tuple(by_size),
        pareto=pareto(fitting(found["pareto"])),
    )


def fitting(planned: Iterable[Planned]) -> list[Fitting]:
    return [Fitting(one.choices, one.plan) for one in planned if one.plan is not None and one.plan.verdict is Verdict.fits]


def pareto(candidates: Sequence[Fitting]) -> tuple[Fitting, ...]:
    """Those that no other beats in allocated memory and in predicted time both, the leanest first; of equals the first."""
    front: list[Fitting] = []
    for one in sorted(candidates, key=lambda one: (one.plan.allocated_mib, one.plan.window_seconds)):
        if not front or one.plan.window_seconds < front[-1].plan.window_seconds:
            front.append(one)
    return tuple(front)


def _in_parts(plan_all: PlanAll, parts: Sequence[Sequence[dict[str, str]]]) -> list[list[Planned]]:
    """Each part's plans, all planned together and what stands in several parts once."""
    distinct = list({tuple(sorted(choices.items())): choices for part in parts for choices in part}.values())
    plans = {tuple(sorted(one.choices.items())): one for one in plan_all(distinct)}
    return [[plans[tuple(sorted(choices.items()))] for choices in part] for part in parts]


def _largest_batch(
    planned: Sequence[Planned], sized: Callable[[int], dict[str, str]], plan_all: PlanAll
) -> tuple[Fitting | None, Planned | None]:
    """The largest batch that fits among SIZES, and then BETWEEN the last that fits and the next. A batch of more windows than
    there are is none."""
    possible = [one for size, one in zip(SIZES, planned, strict=True) if one.plan is None or size <= one.plan.train_windows]
    last = max((index for index, one in enumerate(possible) if fitting([one])), default=None)
    if last is None:
        return None, possible[0] if possible else None
    best = fitting([possible[last]])[0]
    between = sorted({int(SIZES[last] * factor) for factor in BETWEEN} - {SIZES[last]})
    for one in plan_all([sized(size) for size in between if size <= best.plan.train_windows]):
        if not fitting([one]):
            return best, one
        best = fitting([one])[0]
    return best, possible[last + 1] if last + 1 < len(possible) else None
