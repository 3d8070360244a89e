"""The pages of sessions as their user sees them: on a laptop whose only way is the login node, by the line that was printed, in a browser.
Nobody else gets anything: another user of the node, of the login node, of the laptop, and a stranger on the network."""

import json
import os
import re
import time
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest
from PIL import Image

from tests.cluster import sshd
from tests.minicluster import Cluster, missing_here
from tests.minicluster.spec import USER
from tests.slurm.desk import LIMIT_S, Desk, assert_nobody_else_gets_anything, opened, places_of_token, screenshot, session, settle, slipway
from tests.terminal import Terminal
from tests.workflow.report.browser import Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(sshd.missing() is not None, reason="no sshd in namespaces here: root, openssh-server, iproute2"),
]
STUDY: Final = """\
study: digits-scaling
datasets:
  digits: {source: sklearn-digits, encoding: raw, size: 32, channels: grey, shards: 4, splits: {test: 0.2}}
base:
  {framework: pytorch, dataset: digits, model: lenet, batch_size: 32, optimizer: {learning_rate: 0.02, momentum: 0.9},
   steps: {warmup: 10, measured: 40}, repeats: 1}
axes: {nodes: [1, 2]}
limits: {walltime: 10m, init: 5m}
"""
CELL: Final = """\
import os
import slipway_reader

print("on", os.uname().nodename)
train = slipway_reader.open_dataset(os.environ["SLIPWAY_DATA"]).split("train")
images, labels = train.read_many(range(5))
print(len(train), "images,", images.shape, images.dtype)
print("labels", labels.tolist())\
"""
EDITOR: Final = "document.querySelector('.jp-Notebook .jp-CodeCell .cm-content')"
CONTROL: Final = 2
CHART: Final = (345, 220, 1240, 500)
"""Of the screenshot."""
LINE_PIXELS: Final = 300
LINE_COLOURS: Final = "[...document.querySelectorAll('.run-color-swatch')].map((one) => one.style.background)"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A cluster of Slurm, and a laptop beside it."""
    if reason := missing_here():
        pytest.skip(reason)
    with Cluster.up(f"desk{os.getpid()}", nodes=2, gpus=2, cores=4, for_users=True) as cluster:
        found = Desk(cluster, tmp_path_factory.mktemp("desk"))
        try:
            found.open()
            yield found
        finally:
            found.close()


@pytest.fixture(scope="module")
def results(desk: Desk) -> Path:
    """Of the study, which has run on this cluster."""
    (desk.cluster.spec.home / "study.yaml").write_text(STUDY)
    slipway(desk, "run", "study.yaml")
    return desk.cluster.shared / "slipway" / "results" / "digits-scaling"


@pytest.fixture(scope="module")
def tools() -> str:
    """An interpreter with JupyterLab and TensorBoard, which the cluster's user may execute."""
    found = os.environ.get("SLIPWAY_SESSION_TOOLS")
    if found is None:
        pytest.skip("JupyterLab is not installed here: SLIPWAY_SESSION_TOOLS names an environment that has it")
    return f"{found}/bin/python"


def keep(picture: bytes, name: str, directory: Path) -> None:
    """In $SLIPWAY_SCREENSHOTS where that is set."""
    Path(os.environ.get("SLIPWAY_SCREENSHOTS") or directory, f"{name}.png").write_bytes(picture)


# -- the pages


def test_tensorboard_shows_the_losses_of_a_study(desk: Desk, tools: str, results: Path, tmp_path: Path) -> None:
    with session(desk, "tensorboard", "--study", "study.yaml", "--python", tools, "--time", "20m") as one:
        with opened(desk, one, tmp_path) as page:
            settle(page, "document.querySelectorAll('scalar-card').length > 0")
            assert one.token not in page.evaluate("location.href"), "it stands in no address any more"
            for run in results.glob("runs/*-n1-*"):
                assert losses_shown(page, run.name) == pytest.approx(losses_of(run)), run
            assert len(losses_shown(page, next(results.glob("runs/*-n2-*")).name)) == 50
            page.open(f"http://127.0.0.1:{one.port}/?tagFilter=%5Eloss%24&smoothing=0#timeseries")
            settle(page, "document.querySelector('scalar-card button[aria-label=\"Toggle full size mode\"]')")
            page.evaluate("document.querySelector('button[aria-label=\"Close side pane\"]').click()")
            page.evaluate("document.querySelector('scalar-card button[aria-label=\"Toggle full size mode\"]').click()")
            picture = await_lines(page)
            keep(picture, "session-tensorboard", tmp_path)
            assert_nobody_else_gets_anything(desk, one, dict.fromkeys(("/", "/data/runs"), "HTTP/1.1 403 Forbidden"))
        assert places_of_token(desk, one) == {str(one.directory / "token"), "its/token"}
    assert places_of_token(desk, one) == set()


def await_lines(page: Browser) -> bytes:
    """A screenshot in which each run has its line: the chart is drawn by whatever the browser has, and tells nobody when it is."""
    colours = [tuple(map(int, re.findall(r"\d+", text))) for text in page.evaluate(LINE_COLOURS)]
    end = time.monotonic() + LIMIT_S
    while True:
        picture = screenshot(page)
        with Image.open(BytesIO(picture)) as image:
            found = image.convert("RGB").crop(CHART).getcolors(1 << 20) or []
        counts = {colour: count for count, colour in found}
        if colours and all(counts.get(colour, 0) > LINE_PIXELS for colour in colours):
            return picture
        assert time.monotonic() < end, f"no line of {colours}: {sorted(found)[-9:]}"
        time.sleep(0.5)


def losses_shown(page: Browser, run: str) -> list[float]:
    """As TensorBoard has them."""
    ask = f"fetch('/data/plugin/scalars/scalars?run={run}&tag=loss').then((answer) => answer.json())"
    found = page.call("Runtime.evaluate", expression=ask, awaitPromise=True, returnByValue=True)["result"]["value"]
    return [value for _, _, value in found]


def losses_of(run: Path) -> list[float]:
    """As its only rank has written them."""
    events = map(json.loads, (run / "attempts" / "1" / "events-0.jsonl").read_text().splitlines())
    return [event["loss"] for event in events if event["event"] == "step"]


def test_a_notebook_computes_where_its_dataset_is(desk: Desk, tools: str, results: Path, tmp_path: Path) -> None:
    assert results.is_dir(), "its dataset is built"
    words = ("--study", "study.yaml", "--dataset", "digits", "--gpus", "0", "--python", tools, "--time", "20m")
    with session(desk, "notebook", *words) as one:
        with opened(desk, one, tmp_path) as page:
            compute(page, CELL)
            said = page.evaluate("document.querySelector('.jp-OutputArea-output').innerText")
            assert said.splitlines()[0] == f"on {one.node}", said
            assert re.search(r"^\d+ images, \(5, 32, 32, 1\) uint8$", said, re.MULTILINE), said
            page.evaluate("document.querySelector('.Toastify')?.remove()")  # it asks whether news are wanted
            keep(screenshot(page), "session-notebook", tmp_path)
            refused = {"/api/contents": "HTTP/1.1 403 Forbidden", "/api/kernels": "HTTP/1.1 403 Forbidden", "/lab": "HTTP/1.1 302 Found"}
            assert_nobody_else_gets_anything(desk, one, refused)
        own = {"its/token", "its/j/jpserver-N.json", "its/j/jpserver-N-open.html"}
        assert places_of_token(desk, one) == {str(one.directory / "token"), *own}
    assert places_of_token(desk, one) == set()


def compute(page: Browser, text: str) -> None:
    """In a new notebook, as it is clicked and typed."""
    settle(page, "document.querySelector('.jp-LauncherCard[data-category=\"Notebook\"]')")
    page.evaluate("document.querySelector('.jp-LauncherCard[data-category=\"Notebook\"]').click()")
    settle(page, "document.querySelector('.jp-Notebook-ExecutionIndicator[data-status=\"idle\"]')")
    page.call("Emulation.setFocusEmulationEnabled", enabled=True)
    settle(page, f"({EDITOR}?.focus(), {EDITOR} && document.activeElement === {EDITOR})")
    page.call("Input.insertText", text=text)
    settle(page, "document.querySelector('.jp-CodeCell .cm-content').innerText.includes('labels')")
    end = time.monotonic() + LIMIT_S
    while page.evaluate("document.querySelector('.jp-CodeCell .jp-InputPrompt').innerText") == "[ ]:":
        assert time.monotonic() < end, "the cell does not run"
        for kind in ("keyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, modifiers=CONTROL)
        time.sleep(0.5)  # JupyterLab drops what is to run before its kernel is there, though it calls that idle
    settle(page, "document.querySelector('.jp-OutputArea-output')?.innerText.includes('labels')")


# -- a shell


def test_a_shell_over_ssh_is_told_before_its_time_is_over(desk: Desk) -> None:
    """Typed on the login node, in a terminal."""
    words = ["slipway", "session", "shell", "--time", "120s", "--gpus", "0", "--site", str(desk.cluster.site_file)]
    terminal = Terminal(partial(desk.cluster.popen, "login", words, user=USER, cwd=desk.cluster.spec.home))
    try:
        terminal.until(r"\$ ")
        terminal.type("echo $((6*7)) on $(hostname)\n")
        terminal.until(r"42 on n\d")
        terminal.until("slipway: this session ends in ")
        terminal.type("exit 5\n")
        assert terminal.ended() == 5
    finally:
        terminal.close()
