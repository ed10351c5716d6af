"""Advice in plain sentences, with the commands to run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from tft_exp.planning.advice import Advice, Fitting
from tft_exp.planning.plan import Plan, Verdict

# What a policy asks for beside memory, in a clause.
PRICES = {
    "recreate": "but drops the optimizer's moments every epoch",
    "cpu_validation": "but validates at the CPU's speed",
    "offload_always": "but copies the state twice every step",
}


def print_advice(advice: Advice, batch: tuple[int, int], console: Console) -> None:
    """Everything that was found; `batch` is the training and the validation batch that were asked for."""

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=False)

    plan = advice.asked.plan
    if plan is None:
        say(f"What was asked for cannot be planned: {advice.asked.refused}")
        return
    assert plan.capacity_mib is not None
    say(f"A card of {plan.capacity_mib + plan.context_mib:,.0f} MiB, of which tensors may take {plan.capacity_mib:,.0f}.\n")
    say(f"What you asked for ({plan.parameters:,} parameters, {batch[0]} windows a step, {batch[1]} a validation batch): {_fit(plan)}.")
    if advice.validation is not None:
        size = advice.validation.choices["batch.validation"]
        say(
            f"  It fits with validation batches of {size} windows instead, at no cost in quality:\n    {command(advice.validation.choices)}"
        )
    say(_largest(advice))
    say(_cheapest(advice))
    say(_models(advice))
    if advice.pareto:
        say("\nPolicies and optimizers that no other beats in memory and predicted time both, for this model and batch:")
        console.print(_pareto(advice.pareto))
        say(f"The leanest of them:\n    {command(advice.pareto[0].choices)}")
    for line in plan.assumed:
        say(line)


def command(choices: Mapping[str, str]) -> str:
    return "tft-exp train " + " ".join(shlex.quote(f"{key}={value}") for key, value in choices.items())


def _fit(plan: Plan) -> str:
    left = f"{plan.left_mib or 0.0:,.0f} MiB left"
    if plan.verdict is Verdict.fits:
        return f"fits, {left}"
    if plan.verdict is Verdict.tight:
        return f"tight ({left}): it fits as rehearsed, and not on a card 6 % smaller"
    missing = -(plan.left_mib or 0.0)
    short = f"{missing:,.0f} MiB too few" if missing > 0 else "gaps between blocks are in the way"
    return f"{plan.outcome.replace('_', ' ')}, {short}"


def _largest(advice: Advice) -> str:
    if advice.batch is None:
        return "\nLargest batch: not even one window a step fits."
    size, validation = advice.batch.choices["batch.train"], advice.batch.choices["batch.validation"]
    beyond = ""
    if advice.beyond is not None:
        why = advice.beyond.plan.outcome.replace("_", " ") if advice.beyond.plan else "refused"
        beyond = f"; {advice.beyond.choices['batch.train']} is {'' if why == 'tight' else 'an '}{why}"
    found = f"{size} windows a step, {validation} a validation batch"
    return f"\nLargest batch for this model and policy: {found}{beyond}.\n    {command(advice.batch.choices)}"


def _cheapest(advice: Advice) -> str:
    if not advice.policies:
        return "\nCheapest policy that fits: none does with this model, batch and optimizer."
    best = advice.policies[0]
    lines = [f"\nCheapest policy that fits: {_policy(best, best)}."]
    lines += [f"  {_policy(other, best)}" for other in advice.policies[1:]]
    return "\n".join([*lines, f"    {command(best.choices)}"])


def _policy(one: Fitting, best: Fitting) -> str:
    name = one.choices["policy"]
    cost = one.plan.window_seconds / best.plan.window_seconds
    price = PRICES.get(name)
    return f"{name} takes {one.plan.allocated_mib:,.0f} MiB at {cost:.2f} of its time" + (f", {price}" if price else "")


def _models(advice: Advice) -> str:
    if not advice.models:
        return "\nLargest model that fits: none of the packaged ones does with this batch and policy."
    best = advice.models[0]
    return (
        f"\nLargest packaged model that fits: {best.choices['model']}, {best.plan.parameters:,} parameters, "
        f"{best.plan.left_mib or 0.0:,.0f} MiB left.\n    {command(best.choices)}"
    )


def _pareto(front: tuple[Fitting, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in ("policy", "optimizer"):
        table.add_column(heading)
    for heading in ("takes, MiB", "reserved, MiB", "host, MiB", "relative time"):
        table.add_column(heading, justify="right")
    least = min(one.plan.window_seconds for one in front)
    for one in front:
        plan = one.plan
        figures = (
            f"{plan.allocated_mib:,.0f}",
            f"{plan.reserved_mib:,.0f}",
            f"{plan.host_peak_mib:,.0f}",
            f"{plan.window_seconds / least:.2f}",
        )
        table.add_row(one.choices["policy"], one.choices["optimizer"], *figures)
    return table
