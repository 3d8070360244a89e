"""`slipway profile --trace`: what is printed, and what is refused."""

import gzip
import json
from pathlib import Path

import msgspec
import pytest

from base.errors import RecordError
from tests.extras.profile.test_captured import profile
from tests.extras.profile.test_layers import gpu
from tests.extras.profile.traces import Events
from workflow.commands.main import run
from workflow.report.profile.profile import advice_on, short_kernel
from workflow.report.profile.trace import MAX_EVENTS, read_trace

REFUSED = {
    "cut": (b'{"traceEvents": [{"ph": "X"', "truncated"),
    "empty": (b"", "truncated"),
    "nothing": (b'{"traceEvents": []}', "no operators and no kernels"),
    "another file": (b'{"a": 1}', "no traceEvents"),
    "text": (b"hello", "malformed"),
    "numbers": (b"[1, 2, 3]", "is no trace"),
    "many numbers": (b'{"traceEvents": [' + b"1," * (MAX_EVENTS + 1000) + b"1]}", "a list of something else"),
    "deep": (b'{"a": ' + b"[" * 100_000, "recursion"),
    "nan": (b'{"traceEvents": [{"ts": NaN}]}', "malformed"),
    "cut gzip": (gzip.compress(b'{"traceEvents": []}' * 1000)[:-20], "cut or damaged"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_trace_is_refused_in_a_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, reason = REFUSED[name]
    (tmp_path / "trace").write_bytes(content)
    assert run(["profile", "--trace", str(tmp_path / "trace")]) == RecordError.exit_code
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1


def test_a_trace_of_too_much_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(gpu().text())
    with pytest.raises(RecordError, match="more than 0 MiB of text; profile fewer steps"):
        read_trace(tmp_path / "trace", max_bytes=1000)
    with pytest.raises(RecordError, match="cannot be read"):
        read_trace(tmp_path / "missing")


@pytest.mark.parametrize(
    "event",
    [
        {"ts": 1},
        {"ts": 1, "dur": -1},
        {"ts": 1, "dur": None},
        {"ts": 1e300, "dur": 1},
        {"ts": "1", "dur": 1},
        {"ts": 1, "dur": 1, "name": 5},
        {"ts": 1, "dur": 1, "args": []},
        {"ts": 1, "dur": 1, "cat": "kernel", "args": {"stream": "x"}},
        5,
        None,
    ],
)
def test_an_event_of_another_form_is_left_out_and_told(event: object) -> None:
    events = gpu()
    before = events.profile()
    events.events.append({"ph": "X", "cat": "cpu_op", "name": "a", **event} if isinstance(event, dict) else event)  # type: ignore[arg-type]
    found = events.profile()
    assert found.notes == (*before.notes, "1 event without a valid time or of another form left out")
    assert found.layers == before.layers


def test_names_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = Events()
    events.range("step:0", 0, 100)
    events.range("layer:\x1b[31m\n\u202e" + "a" * 1000, 10, 20)
    events.forward("aten::mm", 12, 10, 1)
    (tmp_path / "trace.json").write_bytes(events.text())
    assert run(["profile", "--trace", str(tmp_path / "trace.json")]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\u202e" not in said
    (layer,) = events.profile().layers
    assert len(layer.name) < 500


def test_the_table_and_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(gpu().text()))
    assert run(["profile", "--trace", str(tmp_path / "trace.json.gz"), "--step-ms", "0.2"]) == 0
    said = capsys.readouterr().out
    assert "mean of 2 profiled steps, 0.108 ms; shares are of 0.200 ms" in said
    assert [line.split() for line in said.splitlines() if line.startswith("a ")] == [
        ["a", "0.0600", "0.0300", "0", "0.0300", "45.0", "%", "k", "/", "wgrad_kernel"]
    ]
    assert "-> from pinned memory they are several times as fast" in said
    assert run(["profile", "--trace", str(tmp_path / "trace.json.gz"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "slipway.profile/1"
    assert found["layers"][0]["forward_ms"] == pytest.approx(0.06)
    assert {"optimizer", "loss", "functional"} <= set(found["other"])
    assert (
        found["copies"][0] | {"kind": "Memcpy HtoD (Pageable -> Device)", "bytes": 1000, "pinned": False, "gb_per_s": 0.2}
        == found["copies"][0]
    )
    for words in (["--step-ms", "0"], ["--step-ms", "0.2", "--json"]):
        assert run(["profile", "--trace", str(tmp_path / "trace.json.gz"), *words]) == 2


@pytest.mark.parametrize(
    ("name", "ms", "advice"),
    [
        ("alexnet-h2d-pageable", 100.0, "from pinned memory"),
        ("alexnet-h2d-pinned", 5.0, "a large share: copy the next batch"),
        ("alexnet-h2d-pageable", 1000.0, ""),
        ("alexnet-h2d-pinned", 100.0, ""),
    ],
)
def test_what_to_do_about_copies(name: str, ms: float, advice: str) -> None:
    _, copy = profile(name).copies
    assert advice_on(copy, ms).startswith(advice)
    assert bool(advice_on(copy, ms)) == bool(advice)
    there = msgspec.structs.replace(copy, kind="Memcpy DtoD (Device -> Device)", pinned=None)
    assert ("changes of layout" in advice_on(there, 5.0)) == (copy.ms > 0.5)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float, int>(int, float const*)", "max_pool_forward_nchw"),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_tn_align1>(cutlass_80::Params)",
            "cutlass_80_simt_sgemm_256x128_8x4_tn_align1",
        ),
        ("void a::b<c<d>, e>::run<f>(g::{lambda(int)#1})", "run"),
        ("aten::mm", "aten::mm"),
    ],
)
def test_a_kernel_is_shown_without_its_types(name: str, short: str) -> None:
    assert short_kernel(name) == short


def test_names_that_are_made_to_keep_a_reader_busy_are_read_at_once(tmp_path: Path) -> None:
    """Four thousand kinds of copies, and names in which a pattern may begin at every place."""
    span = {"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 1_000_000}
    events = [{**span, "cat": "user_annotation", "name": name} for name in ("step:1", "layer:a")]
    for at in range(4_000):
        gpu_side = {"tid": 7, "ts": 3 * at + 1, "dur": 1, "args": {"stream": 7, "device": 0, "correlation": at + 1}}
        events += [
            {**span, "cat": "cuda_runtime", "name": "launch", "ts": 3 * at, "dur": 1, "args": {"correlation": at + 1}},
            {**span, **gpu_side, "cat": "gpu_memcpy", "name": f"Memcpy {at}"},
            *([{**span, **gpu_side, "cat": "kernel", "name": f"{'conv2d_' * 70}{at}"}] if at < 600 else []),
        ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert run(["profile", "--trace", str(path), "--json"]) == 0
