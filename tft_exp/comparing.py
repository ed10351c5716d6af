"""Behind `tft-exp compare`: runs from MLflow, beside each other on the terminal and in files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tft_exp.errors import ConfigError
from tft_exp.report.compare import print_comparison, print_table
from tft_exp.report.groups import group_runs
from tft_exp.report.verdict import recommend
from tft_exp.tracking.runs import load_runs
from tft_exp.tracking.store import open_store


def compare(
    uri: str | None, home: str, experiment: str, what: str | None, *, baseline: str | None, files: Mapping[str, Path | None]
) -> int:
    """Compare the runs of a sweep, an experiment or a filter; `files` by form: png, html, csv, json, parquet. Returns the exit
    code. Raises TrackingError where there are none."""
    wanted = {form: path for form, path in files.items() if path is not None}
    for form, path in wanted.items():
        if not path.parent.is_dir():
            raise ConfigError(f"there is no folder {path.parent}", where=f"--{form}", mend="make it, or name another file")
    store = open_store(uri, home, experiment, create=False)
    title, runs = load_runs(store, what)
    groups = group_runs(runs)
    print_comparison(title, groups, baseline)
    if baseline is not None:
        from tft_exp.report.pairs import differences_table

        print_table(differences_table(groups, baseline))
    print(recommend(groups).text)
    for form, path in wanted.items():
        if form == "html":
            from tft_exp.report.page import render_page
            from tft_exp.tracking.curves import load_curves

            path.write_text(render_page(title, groups, load_curves(store, runs), baseline))
        elif form == "png":
            from tft_exp.report.figures import draw_comparison

            draw_comparison(title, groups, path)
        else:
            from tft_exp.report import export

            {"csv": export.write_csv, "json": export.write_json, "parquet": export.write_parquet}[form](runs, path)
        print(f"written: {path}")
    return 0
