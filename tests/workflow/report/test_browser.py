"""The report in Chromium: it can be seen, and no request leaves the machine."""

import base64
import io
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from PIL import Image

from tests.workflow.report.browser import Browser, browser, find_chromium
from tests.workflow.report.builder import collected, failed, plausible_records, scaling_cells, write_records, write_study
from tests.workflow.report.test_survey_table import machine
from workflow.report.outputs import write_all
from workflow.report.scaling_evidence import evidence, to_html

CHROMIUM = find_chromium()
MODELS = ("lenet", "resnet18")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on PATH: apt-get install chromium")]
VISIBLE = """[...document.querySelectorAll('%s')].map(e => { const r = e.getBoundingClientRect(); return [r.width, r.height, r.right] })"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("browser") / "results" / "digits"
    cells = scaling_cells(model=["lenet", "resnet18"], batch_size=[32, 64], nodes=[1, 2, 4])
    write_records(write_study(directory, cells), [*plausible_records(cells[:-1]), *(failed(cells[-1], repeat) for repeat in (1, 2, 3))])
    write_all([directory], directory)
    return directory / "report.html"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with browser(CHROMIUM, tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def page(chromium: Browser) -> Browser:
    """A page of its own."""
    chromium.renew()
    return chromium


@pytest.fixture
def opened(report: Path, page: Browser) -> Iterator[Browser]:
    """The report, 1000 px wide."""
    resize(page, 1000)
    page.open(report.as_uri())
    yield page
    assert page.named("Runtime.exceptionThrown") == []
    assert page.named("Log.entryAdded") == []


def resize(page: Browser, width: int) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)


CUT = """(() => {
  const outside = (e) => { const r = e.getBoundingClientRect(); return r.width && (r.right > innerWidth + 1 || r.left < -1) };
  const rolls = (e) => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
  const scrolls = (e) => { for (let p = e; p; p = p.parentElement) if (rolls(p)) return true };
  const hides = (e) => ['hidden', 'clip'].includes(getComputedStyle(e).overflowX) && e.scrollWidth > e.clientWidth;
  return [...document.querySelectorAll('main *:not(script)')].filter((e) => (outside(e) && !scrolls(e)) || hides(e))
    .map((e) => e.outerHTML.slice(0, 80));
})()"""
SPILL = """[...document.querySelectorAll('.plot')].flatMap((plot) => [...plot.querySelectorAll('text')].filter((text) => {
  const box = plot.getBoundingClientRect(), r = text.getBoundingClientRect();
  return r.width && (r.left < box.left - 1 || r.right > box.right + 1);
}).map((text) => text.textContent))"""
SCROLLED = "[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.ariaLabel)"
RUNS = "[...document.querySelectorAll('#all-runs tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
STATUS = "document.querySelector('#runs-tools output').value"


def press(page: Browser, key: str, code: int) -> None:
    for kind in ("keyDown", "keyUp"):
        text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
        page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)


def test_the_table_of_times_fits_a_screen_of_1300(opened: Browser) -> None:
    resize(opened, 1300)
    widths = "(() => { const t = document.querySelector('#table-times table'); return [t.scrollWidth, t.parentElement.clientWidth] })()"
    table, place = opened.evaluate(widths)
    assert table <= place
    caption = opened.evaluate("document.querySelector('#table-times figcaption').textContent")
    assert "In all rows: per node 1, jobs 1, node sets 1, input wait 5.0 %." in caption


@pytest.mark.parametrize("width", [1000, 1400])
def test_tables_of_several_machines_fit_a_screen(opened: Browser, tmp_path: Path, width: int) -> None:
    steps_s = {"weak": {1: 0.4, 2: 0.44, 4: 0.46}, "strong": {1: 0.15, 2: 0.17, 4: 0.2}, "huge": {1: 0.05}}
    places = [machine(tmp_path / name, nodes) for name, nodes in steps_s.items()]
    write_all(places, tmp_path / "page")
    resize(opened, width)
    opened.open((tmp_path / "page" / "report.html").as_uri())
    assert opened.evaluate("document.querySelectorAll('#table-survey, #table-prediction').length") == 2
    assert opened.evaluate(SCROLLED) == []


def test_on_a_narrow_screen_what_a_row_is_about_stays_in_sight(opened: Browser) -> None:
    resize(opened, 500)
    opened.evaluate("for (const e of document.querySelectorAll('.scroll')) e.scrollLeft = 1e6")
    row = "document.querySelector('#table-times tbody tr')"
    assert opened.evaluate(f"{row}.cells[0].innerText.trim()") == "lenet, batch 32, nodes 1"
    left = f"{row}.cells[0].getBoundingClientRect().left - {row}.closest('.scroll').getBoundingClientRect().left"
    assert opened.evaluate(f"[{row}.closest('.scroll').scrollLeft > 0, Math.abs({left}) < 1]") == [True, True]


@pytest.mark.parametrize("width", [500, 1000, 1400])
def test_nothing_is_cut(opened: Browser, width: int) -> None:
    resize(opened, width)
    assert opened.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
    assert opened.evaluate(CUT) == []
    assert opened.evaluate(SPILL) == []
    if width > 500:
        assert opened.evaluate(f"document.querySelectorAll('#all-runs').length && {SCROLLED}") == [], "no table scrolls sideways"
    opened.evaluate("for (const e of document.querySelectorAll('.scroll')) e.scrollLeft = 1e6")
    ends = """[...document.querySelectorAll('.scroll')].map((e) => Math.max(...[...e.querySelectorAll('tr > :last-child')].map((cell) =>
        cell.getBoundingClientRect().right)) - e.getBoundingClientRect().right)"""
    assert max(opened.evaluate(ends)) <= 1, "the last column can be scrolled to"


def test_a_number_leads_to_its_runs_and_from_there_to_the_record(opened: Browser, report: Path) -> None:
    opened.evaluate("document.querySelector('#table-speedup tbody tr:last-child td:last-child a').click()")
    opened.settle("location.hash.startsWith('#cell-')")
    rows = opened.evaluate(RUNS)
    assert [row[2] for row in rows] == ["resnet18, batch 64, 4 nodes \N{MULTIPLICATION SIGN} 1"] * 3
    assert [row[4] for row in rows] == ["oom"] * 3
    assert opened.evaluate(STATUS) == "3 of 36 runs, by the link that was followed"
    assert opened.evaluate("document.activeElement.getAttribute('aria-label')") == "All runs"
    assert -1 <= opened.evaluate("document.getElementById('runs').getBoundingClientRect().top") < 300
    hrefs = opened.evaluate("[...document.querySelectorAll('#all-runs tbody tr:first-child a')].map((a) => a.href)")
    path = Path(unquote(urlsplit(hrefs[0]).path))
    assert json.loads(path.read_text())["run_id"] == rows[0][0]
    opened.evaluate("document.querySelector('#runs-tools button').click()")
    opened.settle("location.hash === '#runs'")
    assert len(opened.evaluate(RUNS)) == 36


def test_the_filter_takes_words_and_no_parts_of_hashes(opened: Browser) -> None:
    def found(words: str) -> list[list[str]]:
        opened.evaluate(f"(() => {{ const f = document.getElementById('runs-filter'); f.value = {json.dumps(words)}; "
                        "f.dispatchEvent(new Event('input')) })()")  # fmt: skip
        rows: list[list[str]] = opened.evaluate(RUNS)
        return rows

    assert {row[2] for row in found("batch 32 1 node")} == {f"{model}, batch 32, 1 node \N{MULTIPLICATION SIGN} 1" for model in MODELS}
    assert found("batch 3") == []
    assert found("32 node") == []
    assert {row[4] for row in found("oom")} == {"oom"}
    assert {row[2].split(",")[0] for row in found("resn")} == {"resnet18"}
    run = found("lenet")[0][0]
    assert [row[0] for row in found(run)] == [run]


def test_the_filter_is_two_stops_of_the_tab_key_away(opened: Browser) -> None:
    press(opened, "Tab", 9)
    press(opened, "Tab", 9)
    assert opened.evaluate("document.activeElement.textContent") == "Skip to the filter of the runs"
    press(opened, "Enter", 13)
    opened.settle("document.activeElement.id === 'runs-filter'")


def test_without_scripts_all_is_read_and_a_number_leads_to_its_first_run(report: Path, page: Browser) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.open(report.as_uri())
    href = page.evaluate("document.querySelector('#table-speedup tbody tr:last-child td:last-child a').hash")
    assert len(page.evaluate(RUNS)) == 36
    assert page.evaluate("[...document.querySelectorAll('#runs-tools, #runs-more')].map((e) => e.offsetHeight)") == [0, 0]
    page.events.clear()
    page.call("Page.navigate", url=f"{report.as_uri()}{href}")
    place = page.evaluate("document.querySelector(':target').closest('tr').cells[2].textContent")
    assert place == "resnet18, batch 64, 4 nodes \N{MULTIPLICATION SIGN} 1"
    background = "getComputedStyle(document.querySelector('%s')).backgroundColor"
    assert page.evaluate(background % "tr:has(:target)") != page.evaluate(background % "#all-runs tbody tr")


def test_runs_are_sorted_and_filtered_by_keyboard(opened: Browser) -> None:
    opened.evaluate("document.querySelector('#all-runs th:nth-child(6) button').focus()")
    outline = opened.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    press(opened, "Enter", 13)
    rates = [row[5] for row in opened.evaluate(RUNS)]
    assert outline == "solid", "who moves by keyboard sees where"
    assert [float(rate) for rate in rates[:-3]] == sorted(float(rate) for rate in rates[:-3])
    assert rates[-3:] == ["\N{EN DASH}"] * 3, "what is missing is last"
    assert opened.evaluate("document.querySelector('#all-runs th[aria-sort]').getAttribute('aria-sort')") == "ascending"
    press(opened, "Enter", 13)
    assert [row[5] for row in opened.evaluate(RUNS)][-3:] == ["\N{EN DASH}"] * 3
    assert opened.evaluate("document.querySelectorAll('#all-runs th[aria-sort=descending]').length") == 1
    opened.evaluate("document.querySelector('#runs-tools input').focus()")
    opened.call("Input.insertText", text="LENET node03")
    rows = opened.evaluate(RUNS)
    assert {(row[2].split(",")[0], row[3]) for row in rows} == {("lenet", "4")}
    assert opened.evaluate(STATUS) == "6 of 36 runs"


def test_the_page_is_printed_whole_and_light(opened: Browser) -> None:
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    opened.call("Emulation.setEmulatedMedia", media="print", features=features)
    resize(opened, 1030)  # A4 on its side, without its margins
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.evaluate("[...document.querySelectorAll('.tools, nav')].map((e) => getComputedStyle(e).display)") == ["none"] * 2
    wide = "[...document.querySelectorAll('main *:not(script)')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).length"
    assert opened.evaluate(wide) == 0, "paper does not scroll"


def test_paper_has_the_heads_of_the_runs_on_each_page_and_breaks_no_word(opened: Browser) -> None:
    opened.call("Emulation.setEmulatedMedia", media="print")
    resize(opened, 1030)
    heads = """[...document.querySelectorAll('#all-runs thead th')].map((e) => [getComputedStyle(e, '::before').content,
      [...e.querySelectorAll('button')].filter((button) => getComputedStyle(button).display !== 'none').length])"""
    shown = opened.evaluate(heads)
    assert [title for title, _ in shown][3:5] == ['"Processes"', '"End"'], "text is repeated on each page, and buttons are not"
    assert {buttons for _, buttons in shown} == {0}
    broken = """[...document.querySelectorAll('#table-times :is(th, td):not(.wrap)')].filter((e) =>
      getComputedStyle(e).overflowWrap !== 'normal' || e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent)"""
    assert opened.evaluate(broken) == []
    place = "(name) => document.querySelector(name).getBoundingClientRect().top"
    assert opened.evaluate(f"({place})('#table-speedup') < ({place})('#speedup .plots')"), "the first page has room for the table"


def test_a_narrow_screen_shows_numbers_of_the_speed_up_first(opened: Browser) -> None:
    resize(opened, 500)
    ends = "[...document.querySelectorAll('#table-speedup tbody tr:first-child td.number')].map((e) => e.getBoundingClientRect().right)"
    assert max(opened.evaluate(ends)) <= 500
    first = "[...document.querySelectorAll('#table-speedup tbody tr:first-child td')].find((e) => e.offsetWidth).textContent"
    assert opened.evaluate(first) == "lenet, weak, 32 each"


@pytest.mark.parametrize("kind", ["cell", "failure"])
def test_what_a_link_leads_to_is_visible_in_the_runs(report: Path, page: Browser, kind: str) -> None:
    resize(page, 1400)
    place = re.search(rf'data-in="[^"]*\b({kind}-[\w-]+)', report.read_text(encoding="utf-8"))
    page.open(f"{report.as_uri()}#{place[1]}")
    assert [row[4] for row in page.evaluate(RUNS)] == [{"cell": "ok", "failure": "oom"}[kind]] * 3, "those of the place alone"
    box = "(() => { const r = document.querySelector('%s').getBoundingClientRect(); return [r.left, r.right, r.top, r.bottom] })()"
    head = page.evaluate(box % "#all-runs thead")
    for column in (5, 9):
        left, right, top, bottom = page.evaluate(box % f"#all-runs tbody tr:first-child td:nth-child({column})")
        assert 0 <= left < right <= 1400
        assert head[3] - 1 <= top < bottom <= 900, "it is below the head, and not behind it"


def test_headings_are_in_order_and_heads_of_tables_say_of_what(opened: Browser) -> None:
    levels = opened.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((e) => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert opened.evaluate("document.querySelectorAll('th:not([scope])').length") == 0
    assert opened.evaluate("document.querySelectorAll('#all-runs tbody th[scope=row]').length") == 36
    assert opened.evaluate("document.querySelectorAll('input:not(label input, [aria-label]), .scroll:not([tabindex])').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(opened: Browser, scheme: str) -> None:
    opened.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    found = opened.evaluate(
        """[...document.querySelectorAll('main :is(p, a, td, th, span, sup, dt, dd, figcaption, output, button)')].map((e) => {
          let at = e; while (at && getComputedStyle(at).backgroundColor === 'rgba(0, 0, 0, 0)') at = at.parentElement;
          return [getComputedStyle(e).color, getComputedStyle(at || document.body).backgroundColor] })"""
    )
    pairs = {tuple(pair) for pair in found}
    assert len(pairs) > 3
    assert [pair for pair in pairs if contrast(*pair) < 4.5] == []


def contrast(ink: str, paper: str) -> float:
    """As WCAG 2 has it, 1 to 21."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(ink), luminance(paper)))
    return (light + 0.05) / (dark + 0.05)


def picture(screenshot: dict[str, Any]) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(screenshot["data"]))).convert("RGB")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tables_and_plots_are_seen_and_nothing_is_requested(report: Path, page: Browser, scheme: str) -> None:
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.open(report.as_uri())
    tables, plots = page.evaluate(VISIBLE % "table"), page.evaluate(VISIBLE % ".plot svg")
    screenshot = picture(page.call("Page.captureScreenshot", captureBeyondViewport=True))
    text = page.evaluate("document.body.innerText")
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    told = page.evaluate(
        "[...document.querySelectorAll('#speedup path title')].filter((e) => e.textContent.includes('2 processes')).length"
    )
    requests = [entry["request"]["url"] for entry in page.named("Network.requestWillBeSent")]
    complaints = [entry["entry"]["text"] for entry in page.named("Log.entryAdded")] + page.named("Runtime.exceptionThrown")
    assert len(tables) == 11, "speed-up, bounds, parts, failures, times, budget, hours, utilisation, storage, model-facts, runs"
    assert len(plots) == 7
    assert all(wide > 100 and high > 30 for wide, high, _ in [*tables, *plots])
    assert width[0] <= width[1], "the page itself does not scroll sideways"
    assert "1 (baseline)" in text
    assert "out of memory" in text
    colours = screenshot.getcolors(maxcolors=1 << 24)
    assert colours is not None
    assert len(colours) > 200, "the screenshot is not blank"
    background = max(colours)[1]
    assert (sum(background) > 700) == (scheme == "light")
    assert requests == [report.as_uri()]
    assert told, "the words of each mark are under the pointer"
    assert complaints == [], "nothing was blocked, because nothing was asked for"


def test_no_request_leaves_the_machine(report: Path, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    with browser(CHROMIUM, tmp_path) as page:
        page.open(report.as_uri())
    assert outside(tmp_path / "net.json") == []


def outside(path: Path) -> list[str]:
    """Addresses in the browser's log of its network that are not on this machine, but for its own calls home, which no page causes."""
    log = json.loads(path.read_text())
    urls = [str(event.get("params", {}).get("url", "")) for event in log["events"]]
    away = {url for url in urls if url.startswith(("http:", "https:", "ws:", "wss:", "ftp:"))}
    return sorted(url for url in away if not str(urlsplit(url).hostname).endswith((".google.com", ".googleapis.com", ".gvt1.com")))


def test_the_page_for_an_application_prints_on_one_sheet(opened: Browser, tmp_path: Path) -> None:
    cells = scaling_cells(model=["lenet", "resnet18", "alexnet"], nodes=[1, 2, 4, 8, 16, 32])
    sheet = to_html(evidence(collected(tmp_path / "digits", plausible_records(cells))))
    (tmp_path / "sheet.html").write_text(sheet)
    opened.open((tmp_path / "sheet.html").as_uri())
    printed = base64.b64decode(opened.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) == 1
