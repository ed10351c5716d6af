"""The command `tft-exp`. Thin: one call each, and every heavy import inside the command that needs it."""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tft_exp.startup import importing

COMMANDS = ("train", "plan", "advise", "check", "compare", "reproduce", "send", "ui")
DESCRIPTION = (
    "Train Temporal Fusion Transformers on market bars, and measure which model, batch, device and optimizer-memory policy fits your card."
)
EPILOG = """\
examples:
  tft-exp train                                            one run on the packaged ES bars
  tft-exp train -m policy=keep,recreate,offload seed=0,1   a sweep
  tft-exp train experiment=demo                            a prepared sweep
  tft-exp plan model=small,base policy=keep,recreate device=cuda_4gb   what fits, before anything runs
  tft-exp advise device=cuda_4gb                           the largest batch and model, the cheapest policy
  tft-exp check my.parquet                                 what the trainer would make of your data
  tft-exp compare                                          the latest sweep as a table
  tft-exp reproduce RUN_ID                                 the same run again, figure by figure
  tft-exp send                                             what MLflow did not take while it was away
  tft-exp ui                                               the runs in MLflow's UI
  eval "$(tft-exp train -sc install=bash)"                 shell completion
"""


def main() -> None:
    """Entry point: exit code 2 and a clear message where the user's input cannot be used."""
    from tft_exp.errors import Killed, UserError

    try:
        code = _dispatch(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except Killed:
        print("terminated", file=sys.stderr)
        code = 143
    except BrokenPipeError:
        # The reader of our output has gone (tft-exp compare | head); that is no error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    gc.freeze()  # what is alive now goes with the process; looking through it takes half a second
    sys.exit(code)


def _dispatch(arguments: Sequence[str]) -> int:
    # Hydra reads the arguments of train itself, and its completion script calls the bare program.
    if arguments[:1] == ["train"]:
        return _train(arguments[1:])
    if "-sc" in arguments[:1] or "--shell-completion" in arguments[:1]:
        return _complete(arguments)
    parser = _parser()
    options = parser.parse_args(arguments)
    commands = {"check": _check, "plan": _plan, "advise": _advise, "compare": _compare, "reproduce": _reproduce, "send": _send, "ui": _ui}
    return commands[options.command](options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tft-exp", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser("train", help="run an experiment or a sweep (tft-exp train --help)", add_help=False)
    check = commands.add_parser("check", help="read a data file as the trainer would, and say what is in it")
    check.add_argument("file", nargs="?", help="a Parquet or CSV file, or a folder of Parquet files; left out: the configured data")
    check.add_argument("overrides", nargs="*", help="as for train: data.time=ts features=none ...")
    planning = argparse.ArgumentParser(add_help=False)
    planning.add_argument("overrides", nargs="*", help="as for train -m: model=small,base policy=keep,recreate device=cuda_4gb ...")
    planning.add_argument("--rows", type=_positive, default=100_000, help="rows to assume where data.path is not there (default: 100000)")
    planning.add_argument("--categories", type=_positive, default=100, help="values of each categorical column, likewise (default: 100)")
    planning.add_argument("--calibration", type=Path, help="what scripts/calibrate_cuda.py measured on the card")
    planning.add_argument("--jobs", type=_positive, help="processes (default: one a core)")
    plan = commands.add_parser("plan", parents=[planning], help="what each combination takes of a card, and whether it fits")
    plan.add_argument("--json", type=Path, help="also write the plans into this file")
    plan.add_argument("--csv", type=Path, help="also write a row a combination into this file")
    plan.add_argument("--png", type=Path, help="also draw the phases against the card into this file")
    commands.add_parser("advise", parents=[planning], help="the largest batch and model, and the cheapest policy, for a card")
    store = argparse.ArgumentParser(add_help=False)
    store.add_argument("--home", default="mlruns", help="folder of the SQLite store (default: mlruns)")
    store.add_argument("--uri", help="MLflow tracking URI, instead of --home")
    store.add_argument("--experiment", default="tft-exp", help="MLflow experiment (default: tft-exp)")
    compare = commands.add_parser("compare", parents=[store], help="compare the runs of a sweep")
    compare.add_argument(
        "what", nargs="?", help="a sweep's id, an experiment, or a filter such as \"params.model = 'large'\"; left out: the latest sweep"
    )
    compare.add_argument("--baseline", metavar="POLICY", help="also the differences to this policy, paired by seed")
    compare.add_argument("--png", type=Path, help="also draw the comparison into this file")
    compare.add_argument("--html", type=Path, help="also write one page with figures, a recommendation and every run's verdict")
    compare.add_argument("--csv", type=Path, help="also write a row a run into this file")
    compare.add_argument("--json", type=Path, help="likewise")
    compare.add_argument("--parquet", type=Path, help="likewise")
    again = commands.add_parser("reproduce", parents=[store], help="run a recorded run again, and compare every figure")
    again.add_argument("run_id", help="the run's id in MLflow")
    send = commands.add_parser("send", help="send to MLflow what runs could not send while it did not answer")
    send.add_argument("--home", default="mlruns", help="folder in which the runs keep it (default: mlruns)")
    ui = commands.add_parser("ui", parents=[store], help="open MLflow's UI on the runs")
    ui.add_argument("--sweep", help="show this sweep's runs alone")
    ui.add_argument("--port", type=int, default=5000)
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _train(arguments: Sequence[str]) -> int:
    with importing():
        from tft_exp.app import train

    return train(arguments)


def _complete(arguments: Sequence[str]) -> int:
    """Answer the shell: subcommands by ourselves, overrides by Hydra."""
    line = os.environ.get("COMP_LINE", "")
    overrides = re.match(r"\s*\S+\s+(?:train|plan|advise)\s(.*)", line)
    if overrides is None:
        typed = line.split(maxsplit=1)[1] if len(line.split()) > 1 else ""
        print(" ".join(command for command in COMMANDS if command.startswith(typed)))
        return 0
    os.environ["COMP_LINE"] = f"tft-exp {overrides.group(1)}"
    return _train(arguments)


def _check(options: argparse.Namespace) -> int:
    with importing():
        from tft_exp.compose import compose_config
        from tft_exp.data.dataset import load_dataset

    # An override may stand where the file would: then the configured data is checked.
    given = [options.file, *options.overrides] if options.file else []
    paths = [word for word in given[:1] if not re.match(r"[\w./+~@]+=", word)]
    overrides = [word for word in given if word not in paths]
    if paths:
        if not any(word.startswith("data=") for word in overrides):
            overrides = ["data=bars", *overrides]
        overrides.append("data.path=" + _quoted(paths[0]))
    config = compose_config(overrides)
    dataset = load_dataset(config.data, config.features, lookback=config.model.lookback, horizon=config.model.horizon)
    print(dataset.report.render())
    return 0


def _quoted(path: str) -> str:
    """A path as a value of Hydra's override grammar, whatever characters it holds."""
    return "'" + path.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _plan(options: argparse.Namespace) -> int:
    with importing():
        from tft_exp.planner import plan
        from tft_exp.planning.plan import Assumed

    return plan(
        options.overrides,
        assumed=Assumed(options.rows, options.categories),
        calibration=options.calibration,
        jobs=options.jobs,
        json_file=options.json,
        csv_file=options.csv,
        png_file=options.png,
    )


def _advise(options: argparse.Namespace) -> int:
    with importing():
        from tft_exp.planner import advise
        from tft_exp.planning.plan import Assumed

    return advise(options.overrides, assumed=Assumed(options.rows, options.categories), calibration=options.calibration, jobs=options.jobs)


def _compare(options: argparse.Namespace) -> int:
    with importing():
        from tft_exp.comparing import compare

    files = {form: getattr(options, form) for form in ("png", "html", "csv", "json", "parquet")}
    return compare(options.uri, options.home, options.experiment, options.what, baseline=options.baseline, files=files)


def _reproduce(options: argparse.Namespace) -> int:
    with importing():
        from tft_exp.reproducing import reproduce

    return reproduce(options.uri, options.home, options.experiment, options.run_id)


def _send(options: argparse.Namespace) -> int:
    with importing():
        from tft_exp.tracking.spool import send_left, spool_of

    left = send_left(options.home)
    for one in left:
        print(f"kept: {one.name} in {one.folder}\n  {one.trouble}" if one.trouble else f"sent: {one.name}, run {one.run_id}")
    if not left:
        print(f"nothing is kept in {spool_of(options.home)}")
    return int(any(one.trouble for one in left))


def _ui(options: argparse.Namespace) -> int:
    from tft_exp.tracking.ui import serve

    return serve(options.uri, options.home, options.experiment, options.sweep, options.port)


if __name__ == "__main__":
    main()
