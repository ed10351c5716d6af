"""MLflow's own pages over a real sweep, in a real browser."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import clean_environment, command, new_home, tft_exp

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium")

SWEEP = ["policy=keep,stash,recreate", "seed=0,1", "model=tiny", "trainer=quick", "trainer.limit_train_batches=4", "trainer.max_epochs=3"]
SECONDS = 60.0  # for a page to be there, on a busy machine


@dataclass
class Pages:
    """MLflow's UI as `tft-exp ui --sweep` opens it: a browser that stands on the page that it names."""

    page: sync_api.Page
    pictures: Path

    def picture(self, name: str) -> None:
        """Left in the test's folder, or where TFT_EXP_PICTURES names one, to be looked at."""
        self.page.screenshot(path=str(self.pictures / f"{name}.png"))

    def sees(self, *texts: str) -> None:
        for text in texts:
            self.page.get_by_text(text, exact=True).first.wait_for(timeout=SECONDS * 1000)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[tuple[sync_api.Browser, str]]:
    """A browser, and the address of a sweep's runs in a running UI."""
    folder = tmp_path_factory.mktemp("ui")
    new_home(folder, empty_store)
    done = tft_exp("train", "-m", *SWEEP, "device=virtual_4gb", cwd=folder)
    assert done.returncode == 0, done.stderr
    (sweep_id,) = re.findall(r"--sweep (\S+)", done.stdout)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        command("ui", "--sweep", sweep_id, "--port", str(port)),
        cwd=folder,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert server.stdout is not None
    address = server.stdout.readline().split()[1]
    try:
        with sync_api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
            yield browser, address
            browser.close()
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture
def pages(opened: tuple[sync_api.Browser, str], tmp_path: Path) -> Iterator[Pages]:
    browser, address = opened
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(SECONDS * 1000)
    for _ in range(int(SECONDS)):
        try:
            page.goto(address)
            break
        except sync_api.Error:
            page.wait_for_timeout(1000)
    page.get_by_text("7 matching runs").wait_for()  # six jobs and the sweep's own run
    assistant = page.get_by_role("button", name="Close", exact=True)
    if assistant.count():
        assistant.first.click()
    yield Pages(page, Path(os.environ.get("TFT_EXP_PICTURES", tmp_path)))
    page.close()


def test_the_runs_are_grouped_by_policy_and_their_charts_are_there(pages: Pages) -> None:
    page = pages.page
    page.get_by_role("button", name="Group by").click()
    page.get_by_role("menuitemcheckbox", name="policy", exact=True).click()
    page.keyboard.press("Escape")
    pages.sees("Group: keep", "Group: stash", "Group: recreate")
    charts = page.get_by_placeholder("Search metric charts")
    charts.fill("(epoch/seconds|memory/validation_peak_allocated)")
    pages.sees("epoch/seconds", "memory/validation_peak_allocated_mib", "recreate (memory/validation_peak_allocated_mib)")
    pages.picture("by_epoch")
    charts.fill("val/loss")
    pages.sees("val/loss", "keep (val/loss)", "stash (val/loss)", "recreate (val/loss)")
    charts.fill("summary/(val_loss|epoch_seconds|state_in_validation)")
    pages.sees("summary/val_loss", "summary/epoch_seconds", "summary/state_in_validation_mib")
    page.locator(".barlayer path").nth(8).wait_for()  # three charts of three bars
    labels = page.locator(".barlayer text").all_text_contents()
    assert (len(labels), labels.count("0.00")) == (9, 1), "recreate alone holds no state in validation"
    pages.picture("summary")


def test_two_runs_are_compared_side_by_side(pages: Pages) -> None:
    page = pages.page
    for name in ("tiny-b64-keep-s0", "tiny-b64-recreate-s0"):
        page.get_by_role("row").filter(has_text=name).first.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Compare", exact=True).click()
    pages.sees("Comparing 2 Runs from 1 Experiment", "tiny-b64-keep-s0", "tiny-b64-recreate-s0")
    shown = page.inner_text("body")
    assert re.search(r"policy\s+keep\s+recreate", shown)
    assert "val/loss" in shown.split("Run details")[0], "the metric that the page draws first"
    pages.picture("compare")


def test_artifacts_open(pages: Pages) -> None:
    page = pages.page
    page.get_by_role("link", name="tiny-b64-stash-s0").first.click()
    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_text("timeline", exact=True).first.click()
    page.get_by_text("timeline.png", exact=True).first.click()
    page.locator("img[src*='timeline.png'], img[src^='blob:'], img[src^='data:image/png']").first.wait_for()
    pages.picture("timeline")


def test_the_sweeps_own_run_shows_the_comparison(pages: Pages) -> None:
    page = pages.page
    page.get_by_role("link", name=re.compile("^sweep ")).first.click()
    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_text("comparison.html", exact=True).first.click()
    page.frame_locator("iframe").first.get_by_text("Memory, time and loss").wait_for()
    pages.picture("comparison")
