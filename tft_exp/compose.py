"""From conf/ and overrides to a checked Config, and Hydra's errors in the words of errors.py."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields, is_dataclass
from itertools import product
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException, ValidationError

from tft_exp.config import Config
from tft_exp.errors import ConfigError

VERSION_BASE = "1.3"


def conf_dir() -> Path:
    """The folder of the shipped configuration: inside the package in a wheel, at the repository's top in a checkout.

    An editable install ignores the wheel's force-include, and so finds the one at the top.
    """
    package = Path(__file__).resolve().parent
    packaged = package / "conf"
    return packaged if packaged.is_dir() else package.parent / "conf"


def options_of(group: str) -> list[str]:
    """The options of a group, by name."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def register_schema() -> None:
    """Make the schema known to Hydra; conf/config.yaml names it first in its defaults list."""
    ConfigStore.instance().store(name="schema", node=Config, provider="tft_exp")


def compose_config(overrides: Sequence[str]) -> Config:
    """The configuration that these overrides give, outside of a Hydra job. Raises ConfigError."""
    from hydra import compose, initialize_config_dir

    register_schema()
    try:
        with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
            return to_config(compose("config", overrides=list(overrides)))
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error) from error


def expand_sweep(overrides: Sequence[str], *, ignored: Collection[str] = ()) -> list[dict[str, str]]:
    """The combinations of a sweep, each by group or key, in Hydra's order: of overrides such as model=small,base, and of a
    prepared sweep (experiment=...). Of the `ignored` keys the first value stands for all. Raises ConfigError."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.types import RunMode

    register_schema()
    try:
        with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
            parser = OverridesParser.create(GlobalHydra.instance().config_loader())
            given = parser.parse_overrides(list(overrides))
            single = [override.input_line or "" for override in given if not override.is_sweep_override()]
            hydra_config = compose("config", overrides=single, return_hydra_config=True).hydra
            prepared = (hydra_config.sweeper.params or {}) if hydra_config.mode is RunMode.MULTIRUN else {}
            named = {override.get_key_element() for override in given}
            swept = parser.parse_overrides([f"{key}={value}" for key, value in prepared.items() if key not in named])
            axes = []
            for override in [*swept, *given]:
                key = override.get_key_element()
                values = list(override.sweep_string_iterator()) if override.is_sweep_override() else [override.get_value_element_as_str()]
                axes.append([(key, value) for value in (values[:1] if key in ignored else values)])
            return [dict(chosen) for chosen in product(*axes)]
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error) from error


def to_config(composed: DictConfig) -> Config:
    """The checked, typed configuration. Raises ConfigError naming the key, its value and what is allowed."""
    # A schema's node still takes keys that were added with `+`; they would be silently ignored.
    _refuse_unknown(Config, composed, "")
    try:
        for key in sorted(OmegaConf.missing_keys(composed)):
            raise ConfigError(f"{key} has no value", where=key, mend=f"set it on the command line: {key}=...")
        config = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise explain(error) from error
    assert isinstance(config, Config)
    return config


def _refuse_unknown(schema: Any, composed: DictConfig, prefix: str) -> None:
    known = {field.name: field for field in fields(schema)}
    for key in composed:
        name = str(key)
        if name not in known:
            raise _unknown_key(prefix + name, known)
        child = composed._get_node(name)
        factory = known[name].default_factory
        if isinstance(child, DictConfig) and is_dataclass(factory):
            _refuse_unknown(factory, child, f"{prefix}{name}.")


def _unknown_key(full_key: str, known: Iterable[str]) -> ConfigError:
    prefix = full_key.rpartition(".")[0]
    dotted = [f"{prefix}.{key}" if prefix else key for key in known]
    close = difflib.get_close_matches(full_key, dotted, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    return ConfigError(f"there is no key {full_key}", where=full_key, mend=f"{guess}allowed here: {', '.join(dotted)}")


def explain(error: Exception) -> ConfigError:
    """Hydra's or OmegaConf's refusal of a configuration as one message: the key, the value, what is allowed."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(error, MissingConfigException) and error.options:
        # Hydra names the option that it looked for as group/option.
        group, _, option = (error.missing_cfg_file or "").rpartition("/")
        options = [str(o) for o in error.options]
        close = difflib.get_close_matches(option, options, n=1)
        guess = f"did you mean {group}={close[0]}? " if close else ""
        return ConfigError(f"{group}={option} does not exist", where=group, mend=f"{guess}options of {group}: {', '.join(options)}")
    if isinstance(cause, ConfigKeyError | AttributeError) and isinstance(cause, OmegaConfBaseException):
        parent = cause.parent_node
        known = [str(key) for key in parent if key != "hydra"] if isinstance(parent, DictConfig) else []
        return _unknown_key(str(cause.full_key or cause.key), known)
    if isinstance(cause, MissingMandatoryValue):
        return ConfigError(
            f"{cause.full_key} has no value", where=str(cause.full_key), mend=f"set it on the command line: {cause.full_key}=..."
        )
    if isinstance(error, OverrideParseException):
        return ConfigError(
            f"cannot read the override {error.override!r}: {str(error).splitlines()[0]}",
            mend="write key=value, group=option, or key=a,b for a sweep",
        )
    first = str(cause).splitlines()[0]
    if isinstance(cause, ValidationError):
        key = str(cause.full_key or "")
        return ConfigError(f"{key}: {first}", where=key)
    if isinstance(cause, OmegaConfBaseException):
        return ConfigError(first, where=str(cause.full_key or ""))
    return ConfigError(str(error).strip())
