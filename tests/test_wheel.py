"""The built wheel, in a venv of its own outside the checkout, with its packaged configuration and bars."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from tests.conftest import clean_environment, new_home, runs_in

CHECKOUT = Path(__file__).resolve().parent.parent


def run(*arguments: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(a) for a in arguments], cwd=cwd, env=clean_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_trains_where_there_is_no_checkout(tmp_path: Path, empty_store: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", CHECKOUT, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("tft_exp-*.whl")
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    # The dependencies are those of this environment: a path in a .pth file does not bring its editable installs along.
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    found = run(python, "-c", "import tft_exp, tft_exp.compose as c; print(tft_exp.__file__, c.conf_dir())", cwd=tmp_path)
    assert str(CHECKOUT) not in found
    home = new_home(tmp_path, empty_store)
    quick = ["model=tiny", "trainer=quick", "device=cpu", "trainer.limit_train_batches=2"]
    run(environment / "bin" / "tft-exp", "train", *quick, cwd=tmp_path)
    run(python, "-m", "tft_exp", "train", "data=es_5s", "seed=1", *quick, cwd=tmp_path)
    run(environment / "bin" / "tft-exp", "compare", "params.model = 'tiny'", "--html", "page.html", cwd=tmp_path)
    assert (tmp_path / "page.html").stat().st_size > 10_000
    runs = runs_in(home)
    assert [run.info.status for run in runs] == ["FINISHED", "FINISHED"]
    # An installed package has no commit of its own, and takes nobody else's.
    assert "git_commit" not in runs[0].data.tags
