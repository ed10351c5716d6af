"""Many plans at once, in processes that share one import of torch. This process imports none."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from tft_exp.planning.plan import Assumed, CardSpeed, Planned
from tft_exp.startup import importing, process_context


def plan_all(
    combinations: Sequence[dict[str, str]],
    *,
    extra: Sequence[str] = (),
    assumed: Assumed | None = None,
    speed: CardSpeed | None = None,
    jobs: int | None = None,
    on_done: Callable[[int], None] = lambda number: None,
) -> list[Planned]:
    """Plans in the order of the combinations, each by group or key; `extra` overrides come before every one's own. `on_done` is
    told how many more are done. `jobs` processes; as many as there are cores where it is None."""
    rest = (tuple(extra), assumed or Assumed(), speed or CardSpeed())
    groups = _alike(combinations)
    workers = min(jobs or os.cpu_count() or 1, len(groups))
    found: dict[int, Planned] = {}
    if workers <= 1:
        for group in groups:
            found |= dict(zip(group, _work([combinations[index] for index in group], *rest), strict=True))
            on_done(len(group))
    else:
        with ProcessPoolExecutor(workers, mp_context=process_context("tft_exp.planning.worker")) as pool:
            running = {pool.submit(_work, [combinations[index] for index in group], *rest): group for group in groups}
            for done in as_completed(running):
                found |= dict(zip(running[done], done.result(), strict=True))
                on_done(len(running[done]))
    return [found[index] for index in range(len(combinations))]


def _alike(combinations: Sequence[dict[str, str]]) -> list[list[int]]:
    """Indices of combinations that differ in the device alone: one rehearsal serves them."""
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for index, choices in enumerate(combinations):
        same = tuple((key, value) for key, value in choices.items() if key.partition(".")[0] != "device")
        groups.setdefault(same, []).append(index)
    return list(groups.values())


def _work(group: Sequence[dict[str, str]], extra: Sequence[str], assumed: Assumed, speed: CardSpeed) -> list[Planned]:
    with importing():
        from tft_exp.planning.worker import plan_group

    return plan_group(group, extra, assumed, speed)
