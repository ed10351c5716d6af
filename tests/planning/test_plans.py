"""Plans: what they know of data without loading it, what they say of a card, and how combinations become a table and files."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.conftest import tft_exp
from tft_exp.compose import compose_config, expand_sweep
from tft_exp.config import BatchConfig, Config
from tft_exp.data.dataset import load_dataset
from tft_exp.errors import ConfigError
from tft_exp.memory.devices import MIB
from tft_exp.memory.trace import TracingAllocator
from tft_exp.planner import read_calibration
from tft_exp.planning import prediction
from tft_exp.planning.advice import Advice, Fitting, advise, pareto
from tft_exp.planning.layout import judge, lay_out
from tft_exp.planning.plan import Assumed, CardSpeed, PhasePeak, Plan, Planned, Verdict
from tft_exp.planning.prediction import Prediction, halved, predict, propose_batch
from tft_exp.planning.rehearsal import Rehearsal, rehearse
from tft_exp.planning.shape import DataShape, shape_from_roles, shape_of
from tft_exp.planning.worker import plan_group
from tft_exp.report.advice import print_advice

DAILY = Path(__file__).parents[1] / "data" / "us_equities_daily_ragged.parquet"


def shape_by_roles(config: Config, assumed: Assumed | None = None) -> DataShape:
    return shape_from_roles(config.data, config.features, config.model, assumed or Assumed())


@pytest.mark.parametrize("features", ["ohlcv", "ohlcv_225"])
def test_roles_alone_give_the_models_inputs(features: str) -> None:
    config = compose_config([f"features={features}"])
    loaded = shape_of(load_dataset(config.data, config.features, lookback=config.model.lookback, horizon=config.model.horizon))
    planned = shape_by_roles(config)
    assert planned.sizes == loaded.sizes
    assert (planned.rows, planned.entities, planned.assumed) == (2264, 1, ())
    assert all(loaded.windows(split) <= planned.windows(split) < 1.2 * loaded.windows(split) + 1 for split in loaded.stretches)


def test_categories_are_counted_in_their_columns_alone() -> None:
    overrides = ["data=bars", f"data.path={DAILY}", "data.time=no_such_column", "data.entities=[symbol]"]
    planned = shape_by_roles(compose_config(overrides))
    assert planned.entities == 13
    assert planned.sizes.static_cardinalities == (14,)
    with pytest.raises(Exception, match="no column ticker"):
        shape_by_roles(compose_config([*overrides, "data.entities=[ticker]"]))


def test_without_a_file_roles_are_enough_and_what_is_assumed_is_said() -> None:
    roles = ["data.target=x", "data.entities=[id]", "data.observed_real=[a,b]", "data.known_categorical=[day]"]
    config = compose_config(["data=table", "features=none", "data.path=not/there.parquet", "data.time=t", *roles])
    planned = shape_by_roles(config, Assumed(rows=5000, categories=7))
    assert planned.sizes.observed_reals == 3
    assert planned.sizes.known_cardinalities == (8,)
    assert planned.sizes.static_cardinalities == (8,)
    assert planned.rows == 5000
    assert "5,000 rows and 7 of each category are assumed" in planned.assumed[0]


@pytest.fixture(scope="module")
def tiny() -> tuple[Config, DataShape, Rehearsal]:
    config = compose_config(["model=tiny", "device=virtual_4gb"])
    shape = shape_by_roles(config)
    return config, shape, rehearse(config, shape)


def test_a_card_is_enough_or_too_small(tiny: tuple[Config, DataShape, Rehearsal]) -> None:
    config, shape, rehearsal = tiny
    assert judge(rehearsal, None)[0] is Verdict.unlimited
    assert judge(rehearsal, 30 * MIB)[0] is Verdict.out_of_memory
    assert judge(rehearsal, 80 * MIB)[0] is Verdict.fits
    small = lay_out(rehearsal, replace(config, device=replace(config.device, capacity_mib=450 + 30)), shape, CardSpeed())
    assert small.outcome == "out of memory in train"
    assert small.shortage is not None
    assert (small.left_mib or 0) < 0
    large = lay_out(rehearsal, config, shape, CardSpeed())
    assert large.outcome == "fits"
    assert large.capacity_mib == 4096 - 450
    assert large.left_mib == pytest.approx(4096 - 450 - large.allocated_mib)
    assert large.highest.phase == "later steps"  # validation shares rows
    for peak in large.peaks:
        assert peak.live_mib == pytest.approx(peak.allocated_mib, rel=0.05, abs=0.1)


def test_a_rehearsal_says_what_a_run_costs(tiny: tuple[Config, DataShape, Rehearsal]) -> None:
    config, shape, rehearsal = tiny
    plan = lay_out(rehearsal, config, shape, CardSpeed())
    slower = lay_out(rehearsal, config, shape, CardSpeed(memory_gb_per_second=64, tflops=1.49))
    assert slower.window_seconds == pytest.approx(2 * plan.window_seconds)
    assert rehearsal.work["validation"].copied == 0
    offload = replace(config, policy=compose_config(["policy=offload"]).policy)
    moved = rehearse(offload, shape).work
    # Both epochs, and both moments of AdamW.
    assert moved["before_validation"].copied == pytest.approx(2 * 8 * rehearsal.parameters, rel=0.01)
    assert moved["after_validation"].copied == moved["before_validation"].copied


def test_one_rehearsal_serves_cards_of_all_sizes_and_an_error_is_one_combinations() -> None:
    group = [
        {"model": "tiny", "device": "virtual_4gb"},
        {"model": "tiny", "device": "virtual_4gb", "device.capacity_mib": "480"},
        {"model": "tiny", "optimizer": "galore"},
        {"model": "tiny", "policy": "nothere"},
    ]
    planned = plan_group(group, (), Assumed(), CardSpeed())
    outcomes = [one.plan.outcome if one.plan else (one.refused or "").splitlines()[0] for one in planned]
    assert outcomes[:2] == ["fits", "out of memory in train"]
    assert outcomes[2].startswith("optimizer.rank=16 is not allowed")
    assert outcomes[3] == "policy=nothere does not exist"


def test_sweeps_expand_as_hydra_does() -> None:
    assert expand_sweep(["model=tiny,small", "batch.train=range(2,4)", "seed=0,1"], ignored=("seed",)) == [
        {"model": model, "batch.train": size, "seed": "0"} for model in ("tiny", "small") for size in ("2", "3")
    ]
    prepared = expand_sweep(["experiment=demo", "policy=keep"], ignored=("seed",))
    assert prepared == [{"seed": "0", "experiment": "demo", "policy": "keep"}]
    assert len(expand_sweep(["policy=glob(*)"])) == 9
    with pytest.raises(ConfigError, match="there is no key foo"):
        expand_sweep(["foo=1"])


def test_the_command_plans_in_processes_and_writes_what_it_printed(tmp_path: Path) -> None:
    files = ["--json", "plans.json", "--csv", "plans.csv", "--png", "plans.png"]
    chosen = ["model=tiny", "policy=keep,recreate,nothere", "device=cuda_4gb,virtual_4gb", "--jobs", "2"]
    done = tft_exp("plan", *chosen, *files, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sum(line.rstrip().endswith("fits") for line in done.stdout.splitlines()) == 4
    assert "refused: policy=nothere device=cuda_4gb; policy=nothere device=virtual_4gb" in done.stdout
    records = json.loads((tmp_path / "plans.json").read_text())
    assert [record["choices"]["policy"] for record in records] == ["keep", "keep", "recreate", "recreate", "nothere", "nothere"]
    assert [record["outcome"] for record in records] == ["fits"] * 4 + ["refused"] * 2
    assert records[0]["phases"]["validation"] == records[1]["phases"]["validation"]
    with (tmp_path / "plans.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["validation_allocated_mib"]) == records[0]["phases"]["validation"]["allocated_mib"]
    assert float(rows[2]["validation_optimizer_state_mib"]) == 0 < float(rows[0]["validation_optimizer_state_mib"])
    assert (tmp_path / "plans.png").stat().st_size > 10_000


def test_the_process_that_waits_imports_no_torch() -> None:
    program = "import sys; import tft_exp.planner; assert 'torch' not in sys.modules and 'mlflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_folder_that_is_not_there_is_said_before_any_work(tmp_path: Path) -> None:
    done = tft_exp("plan", "--json", "nowhere/plans.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no folder nowhere" in done.stderr


def test_a_calibration_sets_what_kernels_take_and_how_fast_a_card_is(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    device = {"context_mib": 300.0, "cublas_workspace_kib": 32768, "lstm_reserve": 6.5}
    file.write_text(json.dumps({"card": "a card", "device": device, "speed": {"tflops": 50.0}}))
    extra, speed = read_calibration(file)
    assert speed == CardSpeed(tflops=50.0)
    config = compose_config(["device=cuda_4gb", *extra])
    assert (config.device.context_mib, config.device.cublas_workspace_kib, config.device.lstm_reserve) == (300, 32768, 6.5)
    plain, calibrated = (plan_group([{"model": "tiny", "device": "cuda_4gb"}], more, Assumed(), speed)[0].plan for more in ((), extra))
    assert plain is not None
    assert calibrated is not None
    assert calibrated.capacity_mib == 4096 - 300
    assert calibrated.allocated_mib - plain.allocated_mib == pytest.approx(2 * (32 - 8.125), abs=1)  # beside the reserve of the LSTM
    for content in ("[1", "{}", '{"device": {"context_mib": "many"}, "speed": {}}'):
        file.write_text(content)
        with pytest.raises(ConfigError, match="is no calibration"):
            read_calibration(file)


def plan_of(allocated_mib: float, seconds: float) -> Plan:
    peak = PhasePeak("validation", allocated_mib, allocated_mib, {"other": allocated_mib})
    return Plan(Verdict.fits, None, None, (peak,), 1000.0, 450.0, 0.0, 1, 100, seconds)


def test_the_pareto_set_is_what_no_other_beats_in_both() -> None:
    candidates = {"a": (100, 5.0), "b": (200, 3.0), "c": (150, 6.0), "d": (300, 3.0), "e": (400, 1.0), "f": (100, 5.0)}
    front = pareto([Fitting({"policy": name}, plan_of(*figures)) for name, figures in candidates.items()])
    assert [one.choices["policy"] for one in front] == ["a", "b", "e"]


def test_what_fits_by_clearing_the_cache_alone_is_tight_near_its_edge(tiny: tuple[Config, DataShape, Rehearsal]) -> None:
    allocator = TracingAllocator()
    allocator.begin("setup")
    allocator.release(allocator.allocate(100 * MIB))
    allocator.allocate(101 * MIB)
    rehearsal = replace(tiny[2], trace=allocator.trace, intervals=("setup",))
    for mib, verdict in ((202, "fits"), (201, "fits"), (110, "fits"), (105, "tight"), (101, "out of memory")):
        assert judge(rehearsal, mib * MIB)[0].value == verdict, mib


@pytest.mark.parametrize(("room", "largest", "beyond"), [(1000, 128, 160), (90, 4, 5), (30, None, 1), (1e9, 1280, None)])
def test_advice_finds_the_largest_batch(room: float, largest: int | None, beyond: int | None) -> None:
    """On plans whose memory grows with the batch: 60 MiB and 7 a window."""

    def plan_all(wanted: Sequence[dict[str, str]]) -> list[Planned]:
        return [Planned(choices, plan_for(choices)) for choices in wanted]

    def plan_for(choices: dict[str, str]) -> Plan:
        needed = 60.0 + 7.0 * int(choices.get("batch.train", "64"))
        plan = plan_of(needed, 1.0 if choices.get("policy", "keep") == "keep" else 2.0)
        verdict = Verdict.fits if needed <= room else Verdict.out_of_memory
        return replace(plan, verdict=verdict, out_of_memory_in=None if needed <= room else "train", train_windows=1500)

    found = advise({"model": "tiny"}, (64, 256), models=["tiny"], optimizers=["adamw", "sgd"], plan_all=plan_all)
    assert (found.batch and found.batch.choices["batch.train"]) == (largest and str(largest))
    assert (found.beyond and found.beyond.choices["batch.train"]) == (beyond and str(beyond))
    if found.batch is not None and largest is not None:
        assert found.batch.choices["batch.validation"] == str(4 * largest)
    fits = room >= 60 + 7 * 64
    assert [one.choices["policy"] for one in found.policies[:1]] == (["keep"] if fits else [])
    assert {one.choices["optimizer"] for one in found.pareto} == ({"adamw"} if fits else set()), "SGD is held against nobody"


def test_sgd_is_held_against_the_others_where_it_is_asked_for() -> None:
    def plan_all(wanted: Sequence[dict[str, str]]) -> list[Planned]:
        return [Planned(choices, plan_of(50.0 if choices.get("optimizer") == "sgd" else 80.0, 1.0)) for choices in wanted]

    found = advise({"optimizer": "sgd"}, (64, 256), models=["tiny"], optimizers=["adamw", "sgd"], plan_all=plan_all)
    assert [one.choices["optimizer"] for one in found.pareto] == ["sgd"]


def test_advice_is_said_with_its_figures_and_commands() -> None:
    asked = {"model": "base", "policy": "keep", "optimizer": "adamw"}
    short = replace(plan_of(1200.0, 1.0), verdict=Verdict.out_of_memory, out_of_memory_in="validation")
    recreate = Fitting({**asked, "policy": "recreate"}, replace(plan_of(700.0, 2.0), peaks=(PhasePeak("validation", 700.0, 812.0, {}),)))
    offload = Fitting({**asked, "policy": "offload"}, plan_of(650.0, 3.0))
    half = Fitting({**asked, "batch.validation": "128"}, plan_of(900.0, 1.0))
    found = Advice(Planned(asked, short), None, None, half, (recreate, offload), (), (offload, recreate))
    console = Console(width=200, file=io.StringIO())
    print_advice(found, (64, 256), console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "64 windows a step, 256 a validation batch): out of memory in validation, 200 MiB too few." in said
    assert "validation batches of 128 windows instead" in said
    assert "tft-exp train model=base policy=keep optimizer=adamw batch.validation=128" in said
    assert "recreate takes 700 MiB at 1.00 of its time, but drops the optimizer's moments every epoch" in said
    assert "offload takes 650 MiB at 1.50 of its time" in said
    rows = [line.split() for line in said.splitlines() if line.split()[1:2] == ["adamw"]]
    assert rows == [["offload", "adamw", "650", "650", "0", "1.50"], ["recreate", "adamw", "700", "812", "0", "1.00"]]


def test_where_nothing_can_be_planned_nothing_is_written(tmp_path: Path) -> None:
    done = tft_exp("plan", "policy=nothere", "--png", "plans.png", "--json", "plans.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "policy=nothere does not exist" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_advise_needs_a_card_and_one_configuration(tmp_path: Path) -> None:
    many = tft_exp("advise", "model=tiny,small", "device=cuda_4gb", cwd=tmp_path)
    assert many.returncode == 2
    assert "these are 2" in many.stderr
    none = tft_exp("advise", "model=tiny", "device=cpu", cwd=tmp_path)
    assert none.returncode == 2
    assert "no card's size is known" in none.stderr


def test_a_prediction_is_held_against_the_phases_that_ended() -> None:
    made = Prediction(plan_of(100.0, 1.0), held_beside_mib=50.0)
    assert made.peak_mib("validation") == 150
    assert made.peak_mib("setup") is None
    assert made.metrics([]) == {}


def test_a_run_is_not_lost_to_its_prediction(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(config: Config, shape: DataShape) -> Plan:
        raise NotImplementedError("no fake kernel")

    monkeypatch.setattr(prediction, "planned", fail)
    config = compose_config(["model=tiny", "device=cpu"])
    assert predict(config, shape_by_roles(config)) is None
    assert "the run cannot be predicted: NotImplementedError: no fake kernel" in caplog.text
    assert propose_batch(config, shape_by_roles(config)) == config, "a batch that cannot be planned is tried as it is"


def test_halving_keeps_what_a_step_adds_up() -> None:
    config = compose_config(["batch=b64", "trainer.limit_train_batches=5", "trainer.limit_validation_batches=3"])
    train, validation = halved(config, "train"), halved(config, "validation")
    assert train is not None
    assert validation is not None
    assert train.batch == BatchConfig(train=32, validation=256, accumulate=2)
    assert validation.batch == BatchConfig(train=64, validation=128)
    # An epoch goes over the same windows: a loss must not depend on the card.
    assert (train.trainer.limit_train_batches, train.trainer.limit_validation_batches) == (10, 3)
    assert (validation.trainer.limit_train_batches, validation.trainer.limit_validation_batches) == (5, 6)
    free = halved(compose_config(["batch=b64", "trainer=full"]), "train")
    assert free is not None
    assert free.trainer.limit_train_batches is None
    assert halved(replace(config, batch=BatchConfig(train=3)), "train") is None
    assert halved(replace(config, batch=BatchConfig(validation=1)), "validation") is None
    assert halved(config, "setup") is None


def test_the_proposed_batch_fits_and_its_double_does_not() -> None:
    config = compose_config(["model=tiny", "batch=auto", "batch.train=256", "device=virtual_4gb", "device.capacity_mib=530"])
    shape = shape_by_roles(config)
    found = propose_batch(config, shape)
    assert found.batch.train * found.batch.accumulate == 256
    assert found.batch.accumulate > 1
    assert prediction.planned(found, shape).verdict is not Verdict.out_of_memory
    double = replace(found.batch, train=found.batch.train * 2, accumulate=found.batch.accumulate // 2)
    assert prediction.planned(replace(config, batch=double), shape).verdict is Verdict.out_of_memory
