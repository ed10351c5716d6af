"""The command line as a shell sees it: exit codes, messages, completion, start-up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import clean_environment, tft_exp

HEAVY = ("torch", "mlflow", "pandas", "pyarrow", "matplotlib", "hydra")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['tft-exp', '--help']\n"
        "from tft_exp.cli import main\n"
        "try: main()\n"
        f"except SystemExit as end: print('EXIT', end.code, [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "usage: tft-exp" in done.stdout
    assert "EXIT 0 []" in done.stdout


def test_train_help_and_cfg_are_hydras(tmp_path: Path) -> None:
    shown = tft_exp("train", "--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert (
        "policy: clear_cache, clear_cache_every_batch, cpu_validation, keep, offload, offload_always, recreate, recreate_rewarm, stash"
        in shown.stdout
    )
    composed = tft_exp("train", "--cfg", "job", "policy=offload", "seed=3", cwd=tmp_path)
    assert composed.returncode == 0
    assert "residency: offload" in composed.stdout
    assert "seed: 3" in composed.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "model.hiden_size=3"], ["no key model.hiden_size", "did you mean model.hidden_size"]),
        (["train", "model.hidden_size=33"], ["must divide model.hidden_size=33"]),
        (["train", "-m", "policy=keep,nothing"], ["policy=nothing does not exist", "recreate"]),
        (["train", "--experimental-rerun", "x.pickle"], ["unpickles"]),
        (["train", "device=cuda", "device.index=99"], ["device."]),
        (["check", "nowhere.parquet"], ["nowhere.parquet"]),
        (["compare"], ["there are no runs in"]),
        (["ui", "--home", "nothing"], ["there are no runs in"]),
    ],
)
def test_a_mistake_ends_with_code_2_and_one_message(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    done = tft_exp(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_completion_in_a_real_bash(tmp_path: Path) -> None:
    script = """
    eval "$(tft-exp train -sc install=bash)"
    complete_line() {
        COMP_LINE="$1"; COMP_POINT=${#1}; read -ra COMP_WORDS <<< "$1"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        COMPREPLY=(); hydra_bash_completion; echo "${COMPREPLY[@]}"
    }
    complete_line "tft-exp tr"
    complete_line "tft-exp train policy=cp"
    complete_line "tft-exp train model.hid"
    """
    environment = clean_environment(PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:3] == ["train", "policy=cpu_validation", "model.hidden_size="], done.stderr


def test_check_describes_the_packaged_bars(tmp_path: Path) -> None:
    done = tft_exp("check", "data=es_1min", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2,264" in done.stdout
    assert list(tmp_path.iterdir()) == []
