"""The table of layers: from the traces of profile runs, beside the measured runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from containers.models import build
from containers.models.facts import layer_costs
from tests.checkout import ROOT
from tests.extras.profile.traces import Events
from tests.workflow.report.builder import csv_rows, failed, make_cell, make_record, write_records, write_study
from workflow.report.formats import to_values
from workflow.report.layers_table import STACKED, layers_of_trace, profiles, stacked, step_of
from workflow.report.outputs import write_collected
from workflow.report.page import page
from workflow.report.plots import PLOTS
from workflow.report.profile.profile import Profile, algorithm_of
from workflow.report.profile.runs import RunProfile, implementations, profiles_in
from workflow.report.study_tables import TABLES
from workflow.study.cell import Cell, profile_of

TRACE = ROOT / "tests" / "captured" / "gpu" / "alexnet-fp32-nchw.json.gz"
CELL = make_cell(model="alexnet", device="cuda", batch_size=128)
PROFILE: dict[str, Any] = profile_of(Cell.from_json(CELL)).to_json()
RUN = f"{PROFILE['cell_id']}-r1"
STEP_S = 0.01192
EXCHANGE = {"schema": "slipway.exchange/1", "steps": 9, "ranks": 2, "step_s": 0.1, "other_s": -0.001, "bucket_bytes": [4096]}


LENET = make_cell(batch_size=8)
ONEDNN = """onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:2
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:abcd::f0,attr-scratchpad:user,,64x3x11x11,0.005
onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx512_core,forward_training,src:f32:a:blocked:abcd::f0,attr-scratchpad:user,\
alg:convolution_direct,mb8_ic20oc50_ih14oh10kh5sh1dh0ph0_iw14ow10kw5sw1dw0pw0,0.354004
onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,backward_data,src:f32:a,,alg:convolution_direct,mb8_ic1oc1,x
onednn_verbose,v1,primitive,exec,cpu,convolution,cut
"""


def on_cpu() -> bytes:
    """A step of LeNet on a processor."""
    events = Events()
    events.range("step:0", 0, 100)
    for number, (name, forward, backward) in enumerate([("conv1", 4, 2), ("conv2", 10, 8), ("relu1", 2, 3)], 1):
        events.range(f"layer:{name}", 10 * number, forward)
        events.forward("aten::mkldnn_convolution", 10 * number, forward, number)
        events.backward("ConvolutionBackward0", 60 + 10 * number, backward, number)
    return events.text()


def results(tmp_path: Path, exchange: object = None, trace: bytes | None = TRACE.read_bytes(), **ends: Any) -> Path:
    """The results of a study with two measured runs of 11.92 ms a step, and a profile run with this trace."""
    directory = write_study(tmp_path / "results" / "digits-scaling", [CELL], repeats=2)
    attempt = directory / "runs" / RUN / "attempts" / "1"
    files = []
    for name, content in (("trace.json.gz", trace), ("exchange.json", None if exchange is None else json.dumps(exchange).encode())):
        if content is not None:
            attempt.mkdir(parents=True, exist_ok=True)
            (attempt / name).write_bytes(content)
            files.append({"path": name, "bytes": len(content), "blake3": blake3(content).hexdigest()})
    profile = failed(PROFILE, **ends) if ends else make_record(PROFILE, step_s=0.0148, files=files)
    write_records(directory, [make_record(CELL, 1, step_s=STEP_S), make_record(CELL, 2, step_s=STEP_S), profile])
    return directory


def rows(directory: Path) -> dict[str, dict[str, str]]:
    table = TABLES["layers"](write_collected([directory], directory))
    return {row["layer"]: row for row in csv_rows(table)}


def told(directory: Path) -> RunProfile:
    ((_, found),) = profiles_in(directory, [Cell.from_json(CELL)])
    assert isinstance(found, RunProfile)
    return found


def test_flop_per_s_and_bytes_of_a_network_of_slipways_and_what_onednn_took(tmp_path: Path) -> None:
    model = build("lenet", 1, (32, 32), 10)
    directory = write_study(tmp_path / "lenet", [LENET, make_cell(**{**LENET, "comm_hook": "fp16"})])
    profile = profile_of(Cell.from_json(LENET)).to_json()
    attempt = directory / "runs" / f"{profile['cell_id']}-r1" / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "trace.json.gz").write_bytes(on_cpu())
    (attempt / "onednn.log").write_text(ONEDNN.replace("\\\n", ""))
    files = [{"path": "trace.json.gz", "bytes": len(on_cpu()), "blake3": blake3(on_cpu()).hexdigest()}]
    measured = make_record(LENET, model_macs=model.macs, model_first_macs=model.first_macs)
    write_records(directory, [measured, make_record(profile, files=files)])
    found = rows(directory)
    flop = 2 * 8 * 100 * 50 * 500
    assert float(found["conv2"]["forward_flop_per_s"]) == pytest.approx(flop / 10e-6)
    assert float(found["conv2"]["backward_flop_per_s"]) == pytest.approx(2 * flop / 8e-6)
    assert float(found["conv1"]["backward_flop_per_s"]) == pytest.approx(2 * 8 * 784 * 20 * 25 / 2e-6)  # of weights alone
    assert float(found["conv2"]["bytes"]) == 3 * 4 * (8 * 20 * 196 + 25_050 + 8 * 50 * 100)
    assert (found["relu1"]["forward_flop_per_s"], found["relu1"]["bytes"]) == ("", str(4 * 8 * 500 * 5))
    assert (found["conv2"]["algorithm"], found["conv1"]["algorithm"]) == ("implicit gemm", "")
    assert found["conv2"]["kernel"] == "brg_conv_fwd:avx512_core / evaluate_function: ConvolutionBackward0"
    analysis = write_collected([directory], directory)
    assert "one operator computes the gradients of both data and weights" in TABLES["layers"](analysis).caption
    first, second = [row for row in to_values(TABLES["convolutions"](analysis))["rows"] if row["cell"]]
    assert (second["cell"], second["algorithm"], second["forward_s"]) == ("no hook · 1×1", "implicit gemm", pytest.approx(10e-6))
    assert second["direct_per_s"] == pytest.approx(flop / 2 / 10e-6)
    assert (first["kernel"], first["algorithm"]) == ("aten::mkldnn_convolution", "")


def test_a_log_that_is_made_to_keep_a_reader_busy_is_read_at_once() -> None:
    found = implementations(
        f"x,exec,cpu,convolution,{'conv2d_' * 400_000}\x1b,forward_training,y,mb1,1\n".encode() + b"\xff,exec,convolution\n"
    )
    ((name, passes),) = found.items()
    assert (name, list(passes)) == ("mb1", ["forward_training"])
    assert algorithm_of(passes["forward_training"]) is None
    assert passes["forward_training"].isprintable()


def test_flop_per_s_of_both_gradients_where_kernels_tell_them() -> None:
    events = Events()
    events.range("step:0", 0, 100)
    events.range("layer:conv2", 10, 10)
    events.forward("aten::convolution", 11, 8, 1)
    events.kernel(12, 20, 4, "implicit_gemm")
    events.backward("ConvolutionBackward0", 40, 20, 1, thread=2)
    events.kernel(42, 50, 20, "x_dgrad_y", thread=2)
    events.kernel(44, 70, 10, "wgrad_kernel", thread=2)
    costs = layer_costs(build("lenet", 1, (28, 28), 10).layers, 1)
    row = to_values(layers_of_trace(events.profile(), 0.1, costs))["rows"][0]
    flop = 2 * 64 * 50 * 500
    assert row["forward_flop_per_s"] == pytest.approx(flop / 4e-6)
    assert row["backward_flop_per_s"] == pytest.approx(2 * flop / 30e-6)
    assert (row["backward_data_flop_per_s"], row["backward_weights_flop_per_s"]) == (
        pytest.approx(flop / 20e-6),
        pytest.approx(flop / 10e-6),
    )


def test_of_layers_with_other_names_nothing_is_counted(tmp_path: Path) -> None:
    directory = results(tmp_path)
    assert not {key for row in rows(directory).values() for key in row if "flop" in key or "bytes" in key}
    keys = {column.key for column in TABLES["convolutions"](write_collected([directory], directory)).columns}
    assert "direct_multiplications" in keys
    assert "forward_s" not in keys


def test_layers_and_the_rest_add_up_to_the_measured_step(tmp_path: Path) -> None:
    found = rows(results(tmp_path))
    assert float(found["step"]["forward_ms"]) == pytest.approx(1000 * STEP_S)
    assert float(found["features.0"]["forward_ms"]) == pytest.approx(0.914, rel=0.01)
    assert float(found["features.0"]["backward_ms"]) == pytest.approx(0.915, rel=0.01)
    parts = [float(row[key] or 0) for name, row in found.items() for key in ("forward_ms", "backward_ms") if name != "step"]
    assert sum(parts) == pytest.approx(1000 * STEP_S)
    assert sum(float(row["share"]) for name, row in found.items() if name != "step") == pytest.approx(1)
    assert 0 < float(found["not computing"]["share"]) < 0.05  # 0.98 of this step are kernels
    assert list(found)[-2:] == ["not computing", "step"]


def test_the_bar_has_each_part_once_and_is_as_long_as_the_step(tmp_path: Path) -> None:
    directory = results(tmp_path)
    analysis = write_collected([directory], directory)
    ((cell, _, found),) = profiles(analysis)
    assert isinstance(found, Profile)
    assert step_of(cell, msgspec.structs.replace(found, device="cpu")) == found.step_ms, "operators of a processor take longer while traced"
    bar = stacked(found, step_of(cell, found))
    assert tuple(bar) == STACKED
    assert sum(bar.values()) == pytest.approx(1000 * STEP_S)
    assert min(bar.values()) >= 0
    spec = PLOTS["layers"](analysis)
    (parts,) = spec["datasets"].values()
    assert spec["encoding"]["x"]["title"] == "traced step, ms"
    assert {value["step"]: value["amount"] for value in parts} == pytest.approx({name: part for name, part in bar.items() if part})
    assert "Where a step goes" in page(analysis, {"layers": "<svg ></svg>"})


def test_the_page_says_what_to_do_about_copies(tmp_path: Path) -> None:
    directory = results(tmp_path, trace=TRACE.with_name("alexnet-h2d-pageable.json.gz").read_bytes())
    shown = page(write_collected([directory], directory), {"layers": "<svg ></svg>"}).replace("\N{NO-BREAK SPACE}", " ")
    found = "batch 128, 1 node × 1: host to device (Pageable -&gt; Device): 1 a step, 38.5 MB, 5.43 ms, 7.10 GB/s, 45.6 % of the step: "
    assert found + "from pinned memory they are several times as fast" in shown
    assert "device to host" not in shown, "of 4 bytes"


def test_another_trace_than_that_of_the_record_is_not_read(tmp_path: Path) -> None:
    directory = results(tmp_path)
    shutil.copy(TRACE.with_name("resnet50-bf16-nhwc.json.gz"), directory / "runs" / RUN / "attempts" / "1" / "trace.json.gz")
    (row,) = rows(directory).values()
    assert (row["layer"], row["forward_ms"]) == ("no profile", "")
    assert row["kernel"].endswith("is not what its record names: `slipway verify` says more")


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"status": "oom"}, "oom: "), ({"trace": None}, "its program left no trace"), ({"trace": b"no gzip"}, "trace.json.gz")],
)
def test_a_profile_that_tells_nothing_is_a_row_with_the_reason(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    (row,) = rows(results(tmp_path, **options)).values()
    assert row["layer"] == "no profile"
    assert reason in row["kernel"]


@pytest.mark.parametrize(
    "wrong",
    [
        {**EXCHANGE, "step_s": 1e300 * 1e300},
        {**EXCHANGE, "bucket_bytes": ["x"]},
        {**EXCHANGE, "comm_hook": "x" * (1 << 20)},
        [EXCHANGE],
        "text",
    ],
)
def test_what_a_program_wrote_of_the_exchange_is_believed_within_bounds(tmp_path: Path, wrong: object) -> None:
    right = told(results(tmp_path / "right", EXCHANGE))
    assert (right.exchange, right.problem) == (EXCHANGE, None)
    directory = results(tmp_path, wrong)
    assert told(directory).profile.layers, "the trace tells all the same"
    assert told(directory).exchange is None
    assert str(told(directory).problem).startswith("exchange.json: ")


def test_without_a_profile_there_is_no_row_no_picture_and_no_chapter(tmp_path: Path) -> None:
    directory = write_study(tmp_path / "results" / "digits-scaling", [CELL], repeats=1)
    write_records(directory, [make_record(CELL)])
    analysis = write_collected([directory], directory)
    assert TABLES["layers"](analysis).num_rows == 0
    assert "no cell has a profile" in str(PLOTS["layers"](analysis))
    assert 'id="layers"' not in page(analysis, {"layers": "<svg ></svg>"})
