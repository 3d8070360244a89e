"""The report in Chromium: it can be seen, and no request leaves the machine."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image

from tests.report.browser import browser, find_chromium
from tests.report.builder import failed, plausible_records, scaling_cells, write_records, write_study
from workflow.report.outputs import write_all

CHROMIUM = find_chromium()
VISIBLE = """[...document.querySelectorAll('%s')].map(e => { const r = e.getBoundingClientRect(); return [r.width, r.height, r.right] })"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("browser") / "results" / "digits"
    cells = scaling_cells(model=["lenet", "resnet18"], batch_size=[32, 64], nodes=[1, 2, 4])
    write_records(write_study(directory, cells), [*plausible_records(cells[:-1]), *(failed(cells[-1], repeat) for repeat in (1, 2, 3))])
    write_all([directory], directory)
    return directory / "report.html"


def picture(screenshot: dict[str, Any]) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(screenshot["data"]))).convert("RGB")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on PATH: apt-get install chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tables_and_plots_are_seen_and_nothing_is_requested(report: Path, tmp_path: Path, scheme: str) -> None:
    assert CHROMIUM is not None
    with browser(CHROMIUM, tmp_path) as page:
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        page.open(report.as_uri())
        tables, plots = page.evaluate(VISIBLE % "table"), page.evaluate(VISIBLE % ".plot svg")
        screenshot = picture(page.call("Page.captureScreenshot", captureBeyondViewport=True))
        text = page.evaluate("document.body.innerText")
        width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        requests = [entry["request"]["url"] for entry in page.named("Network.requestWillBeSent")]
        complaints = [entry["entry"]["text"] for entry in page.named("Log.entryAdded")] + page.named("Runtime.exceptionThrown")
    assert len(tables) == 6, "speed-up, times, hours, budget, failures, how to reproduce"
    assert len(plots) == 5
    assert all(wide > 100 and high > 30 for wide, high, _ in [*tables, *plots])
    assert width[0] <= width[1], "the page itself does not scroll sideways"
    assert "1 (baseline)" in text
    assert "out of memory" in text
    assert '"comparisons"' not in text, "the data of the page is not shown"
    colours = screenshot.getcolors(maxcolors=1 << 24)
    assert colours is not None
    assert len(colours) > 200, "the screenshot is not blank"
    background = max(colours)[1]
    assert (sum(background) > 700) == (scheme == "light")
    assert requests == [report.as_uri()]
    assert complaints == [], "nothing was blocked, because nothing was asked for"
    assert outside(tmp_path / "net.json") == []


def outside(path: Path) -> list[str]:
    """Addresses in the browser's log of its network that are not on this machine, but for its own calls home, which no page causes."""
    log = json.loads(path.read_text())
    urls = [str(event.get("params", {}).get("url", "")) for event in log["events"]]
    away = {url for url in urls if url.startswith(("http:", "https:", "ws:", "wss:", "ftp:"))}
    return sorted(url for url in away if not str(urlsplit(url).hostname).endswith((".google.com", ".googleapis.com", ".gvt1.com")))
