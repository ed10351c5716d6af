"""The configuration as a user meets it: every option composes, and every mistake is named."""

from __future__ import annotations

import pickle
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
import yaml

from tft_exp.compose import compose_config, conf_dir
from tft_exp.config import Config, Residency
from tft_exp.errors import ConfigError
from tft_exp.memory.policies import POLICIES

GROUPS = ["data", "features", "model", "batch", "device", "optimizer", "policy", "gradients", "trainer", "tracking", "experiment"]
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((conf_dir() / group).glob("*.yaml"))]
# Options that must be told something more.
WANTED = {
    ("data", "bars"): ["data.path=x.parquet"],
    ("data", "table"): ["data.path=x.parquet", "data.time=date", "data.target=OT", "features=none"],
    ("tracking", "server"): ["tracking.uri=http://127.0.0.1:5000"],
    ("gradients", "in_backward"): ["trainer.gradient_clip_norm=null"],
}
NO_CLIP = ["trainer.gradient_clip_norm=null"]


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_and_says_what_it_is_for(group: str, option: str) -> None:
    config = compose_config([f"{group}={option}", *WANTED.get((group, option), [])])
    assert isinstance(config, Config)
    lines = (conf_dir() / group / f"{option}.yaml").read_text().splitlines()
    header = [line for line in lines if line.startswith("#") and "@package" not in line]
    assert any(not line.startswith("#   ") for line in header), "no sentence on what it is for"
    # The command in the header uses the option: as it is, or through an environment variable before it.
    assert any(f"{group}={option}" in line for line in header), "no command that uses it"


def test_every_policy_of_the_schema_exists() -> None:
    residencies = {compose_config([f"policy={option}"]).policy.residency.value for group, option in OPTIONS if group == "policy"}
    assert {member.value for member in Residency} == set(POLICIES) == residencies


def test_every_key_is_read_somewhere() -> None:
    code = "\n".join(path.read_text() for path in Path("tft_exp").rglob("*.py") if path.parent.name != "config")
    unread = []

    def walk(schema: type, prefix: str) -> None:
        for field in fields(schema):
            if is_dataclass(field.default_factory):
                walk(field.default_factory, f"{prefix}{field.name}.")
            elif f".{field.name}" not in code and f'"{field.name}"' not in code:
                unread.append(prefix + field.name)

    walk(Config, "")
    assert unread == []


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.hiden_size=3"], ["no key model.hiden_size", "did you mean model.hidden_size"]),
        (["+optimizer.foo=1"], ["no key optimizer.foo", "optimizer.momentum"]),
        (["model=smal"], ["model=smal does not exist", "did you mean model=small", "foxhunt"]),
        (["model.hidden_size=abc"], ["model.hidden_size", "'abc'", "Integer"]),
        (["policy.residency=never"], ["policy.residency", "'never'", "keep, clear_cache, clear_cache_every_batch, recreate, offload"]),
        (["model.hidden_size=0"], ["model.hidden_size=0", "from 1 to 8192"]),
        (["model.dropout=1"], ["model.dropout=1.0", "less than 1"]),
        (["model.selection_size=0"], ["model.selection_size=0", "null: as many as variables"]),
        (["model.hidden_size=30"], ["model.attention_heads=4", "must divide model.hidden_size=30"]),
        (["model.quantiles=[0.9,0.5]"], ["model.quantiles=[0.9, 0.5]", "rising"]),
        (["model.quantiles=[0.1,0.9]"], ["model.quantiles", "0.5"]),
        (["model.quantiles=[0.5,1.5]"], ["model.quantiles", "between 0 and 1"]),
        (["batch.train=0"], ["batch.train=0", "from 1"]),
        (["trainer.max_epochs=0"], ["trainer.max_epochs=0", "from 1"]),
        (["trainer.gradient_clip_norm=-1"], ["trainer.gradient_clip_norm=-1.0", "positive"]),
        (["optimizer.learning_rate=nan"], ["optimizer.learning_rate=nan", "positive"]),
        (["optimizer=sgd", "optimizer.beta1=0.9"], ["optimizer.beta1=0.9", "sgd has no beta1"]),
        (["optimizer=adafactor", "optimizer.fused=true"], ["optimizer.fused=True", "adafactor has no fused", "adamw, sgd read it"]),
        (["optimizer.rank=4"], ["optimizer.rank=4", "adamw has no rank", "only galore"]),
        (["optimizer=galore", "optimizer.rank=0"], ["optimizer.rank=0", "1 or more"]),
        (["optimizer=sgd", "optimizer.state_format=bf16"], ["state_format='bf16'", "sgd keeps its state in float32"]),
        (["optimizer=adamw_8bit", "optimizer.fused=true"], ["optimizer.fused=True", "state_format=int8"]),
        (["policy.rewarmup_steps=5"], ["policy.rewarmup_steps=5", "keep keeps the moments", "recreate_rewarm"]),
        (["gradients=in_backward"], ["gradients.release='in_backward'", "gradient_clip_norm=1.0", "gradient_clip_norm=null"]),
        (["gradients=in_backward", *NO_CLIP, "batch.accumulate=2"], ["in_backward", "batch.accumulate=2"]),
        (["gradients=in_backward", *NO_CLIP, "trainer.precision=fp16"], ["in_backward", "precision=fp16"]),
        (["gradients=in_backward", *NO_CLIP, "optimizer=galore"], ["in_backward", "GaLore"]),
        (["policy=offload_always", "trainer.precision=fp16"], ["offload_always", "precision=fp16"]),
        (["policy=offload_always", "optimizer=galore"], ["offload_always", "GaLore"]),
        (["audit=loose"], ["audit", "'loose'", "warn, strict"]),
        (["device=cpu", "device.capacity_mib=4096"], ["device.capacity_mib=4096", "device.kind=cpu cannot be capped", "cuda_4gb"]),
        (["device=cuda_4gb", "device.capacity_mib=100"], ["device.capacity_mib=100", "device.context_mib=450"]),
        (["data.validation_fraction=0"], ["data.validation_fraction=0.0", "more than 0"]),
        (["data.test_fraction=0.9"], ["data.test_fraction=0.9", "nothing is left to train on"]),
        (["data.max_gap=banana"], ["data.max_gap='banana'", "60s"]),
        (["data.max_gap='5'"], ["data.max_gap='5'", "with a unit"]),
        (["data.max_gap=0s"], ["data.max_gap='0s'", "positive"]),
        (["data.max_gap=-5s"], ["data.max_gap='-5s'", "positive"]),
        (["data.earliest=2200-01-01"], ["data.earliest", "before data.latest"]),
        (["data.earliest=yesterday"], ["data.earliest='yesterday'", "YYYY-MM-DD"]),
        (["data.known_real=[log_return]"], ["data.known_real='log_return'", "target"]),
        (["data.observed_real=[trades]", "data.known_real=[trades]"], ["trades", "already has the role data.known_real"]),
        (["data.observed_real=[timestamp]"], ["timestamp", "time column"]),
        (["data.season_length=70"], ["data.season_length=70", "model.lookback=60"]),
        (["data.bars.volume=null"], ["features.kind='ohlcv'", "data.bars.volume"]),
        (["data=bars"], ["data.path has no value", "data.path=..."]),
        (["tracking=server"], ["MLFLOW_TRACKING_URI"]),
        (["tracking.experiment=' '"], ["tracking.experiment", "a name"]),
        (["seed=-1"], ["seed=-1", "from 0"]),
        (["seed=[1"], ["cannot read the override", "seed=[1"]),
    ],
)
def test_a_mistake_is_named_with_key_value_and_what_is_allowed(
    overrides: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError) as caught:
        compose_config(overrides)
    for word in words:
        assert word in str(caught.value)


def test_errors_survive_the_way_between_processes() -> None:
    error = ConfigError("a is wrong", where="a", mend="make it right")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "a is wrong\n  where: a\n  mend:  make it right"


def test_shipped_configuration_names_no_code() -> None:
    def targets(node: object) -> list[str]:
        if isinstance(node, dict):
            return [key for key in node if key in ("_target_", "_partial_")] + [
                found for value in node.values() for found in targets(value)
            ]
        if isinstance(node, list):
            return [found for value in node for found in targets(value)]
        return []

    for path in conf_dir().rglob("*.yaml"):
        assert targets(yaml.safe_load(path.read_text())) == [], path
