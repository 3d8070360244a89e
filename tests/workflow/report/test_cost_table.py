"""What runs cost: closed forms, prices of the site, and what is not known."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import analysed, collected, make_cell, make_record, write_records, write_study
from workflow.report.analysis import Analysis
from workflow.report.cost_table import DIFFERENT, NO_EPOCH, cost, has_cost, prices_of
from workflow.report.formats import to_values
from workflow.report.page import page
from workflow.report.shared_columns import rows_of
from workflow.study.site import Prices

PRICES = {"currency": "EUR", "gpu_hour": 2.0, "node_hour": 0.5, "kwh": 0.3}


def load(*gpus: float, package_j: float | None = None, rapl: str | None = None) -> dict[str, Any]:
    seen = [{"uuid": f"GPU-{index:04d}", "looks": 20, "energy_j": joules} for index, joules in enumerate(gpus)]
    return {
        "cores": 2,
        "kernel_seen": True,
        "rapl": rapl,
        "before": None,
        "during": {"seconds": 40.0, "gpus": seen, "package_j": package_j},
    }


def made(place: Path, *loads: dict[str, Any] | None, prices: dict[str, Any] | None = None, cell: Any = None, **changes: Any) -> Analysis:
    """A study of one cell, of which each run has one of the loads on all of its nodes."""
    cell = make_cell(device="cuda", gpus_per_node=2, nodes=2) if cell is None else cell
    write_study(place, [cell], repeats=len(loads))
    study = json.loads((place / "study.json").read_text())
    study["site"]["prices"] = prices
    (place / "study.json").write_text(json.dumps(study))
    records = []
    for repeat, one in enumerate(loads, 1):
        record = make_record(cell, repeat, **{"dataset.train_samples": 12_800, **changes})
        for node in record["nodes"]:
            node["load"] = one
        records.append(record)
    write_records(place, records)
    return analysed(place)


def row(analysis: Analysis) -> dict[str, Any]:
    (found,) = to_values(cost(analysis))["rows"]
    assert isinstance(found, dict)
    return found


def test_a_row_by_hand(tmp_path: Path) -> None:
    """Two nodes of two GPUs, 128 samples a step of 0.1 s, 40 s of window: 4 x 16 kJ and 2 x 8 kJ."""
    known = load(16e3, 16e3, package_j=8e3, rapl="read")
    found = row(made(tmp_path / "s", known, known, known, prices=PRICES))
    joules, run_h = 4 * 16e3 + 2 * 8e3, (215 * 0.1 + 3 + 2.9) / 3600
    assert found["run_process_h"] == found["run_gpu_h"] == pytest.approx(4 * run_h)
    assert (found["energy_of"], found["watts"]) == ("GPUs, processors", pytest.approx(joules / 40))
    assert found["window_kwh"] == pytest.approx(joules / 3.6e6)
    assert found["per_joule"] == pytest.approx(400 * 128 / joules)
    assert found["epoch_gpu_h"] == pytest.approx(4 * 12_800 / 128 * 0.1 / 3600)
    assert found["epoch_kwh"] == pytest.approx(12_800 / 128 * 0.1 * joules / 40 / 3.6e6)
    assert found["run_price"] == pytest.approx(run_h * (4 * 2.0 + 2 * 0.5))
    assert found["epoch_price"] == pytest.approx(12_800 / 1280 / 3600 * (4 * 2.0 + 2 * 0.5))
    assert found["epoch_energy_price"] == pytest.approx(0.3 * found["epoch_kwh"])
    assert found["currency"] == "EUR"
    assert found["note"] == ""


def test_energy_of_evaluations_is_left_out(tmp_path: Path) -> None:
    """The counters ran for 40 s of training and as long in evaluations."""
    known = load(16e3, 16e3)
    plain, evaluated = (row(made(tmp_path / str(lasted_s), known, **{"performance.evaluation_s": lasted_s})) for lasted_s in (0.0, 40.0))
    assert evaluated["per_joule"] == pytest.approx(2 * plain["per_joule"])


def test_nothing_known_is_empty_and_never_0(tmp_path: Path) -> None:
    found = row(made(tmp_path / "s", None, None, None, **{"dataset.train_samples": None}))
    empty = ("watts", "window_kwh", "per_joule", "epoch_gpu_h", "epoch_kwh", "run_price", "epoch_price", "epoch_energy_price")
    assert [found[name] for name in empty] == [None] * len(empty)
    assert (found["energy_of"], found["currency"]) == ("", "")
    assert "GPUs: no counter" in found["note"]
    assert NO_EPOCH in found["note"]
    assert "No prices: the site file has none" in cost(made(tmp_path / "t", None)).caption


def test_the_page_has_it_where_there_is_something_to_show(tmp_path: Path) -> None:
    """Energy, GPUs, or a price; the hours of processors alone are no reason."""
    on_cpus = make_cell(nodes=2)
    known = made(tmp_path / "s", load(package_j=9e3, rapl="read"), cell=on_cpus)
    priced = made(tmp_path / "t", None, prices=PRICES, cell=on_cpus)
    gpus, neither = made(tmp_path / "u", None), made(tmp_path / "v", None, cell=on_cpus)
    assert [has_cost(one) for one in (known, priced, gpus, neither)] == [True, True, True, False]
    assert 'id="table-cost"' in page(priced, {})
    assert ">Energy and cost</h2>" in page(priced, {}), "a chapter of its own"
    assert 'id="table-cost"' not in page(neither, {})


def test_runs_that_differ_in_what_is_known_give_no_energy(tmp_path: Path) -> None:
    both, gpus = load(9e3, 9e3, package_j=4e3, rapl="read"), load(9e3, 9e3, rapl="not permitted")
    found = row(made(tmp_path / "s", both, gpus, both))
    assert (found["per_joule"], found["energy_of"]) == (None, "")
    assert DIFFERENT in found["note"]
    assert row(made(tmp_path / "t", gpus, None))["per_joule"] is None
    found = row(made(tmp_path / "alike", gpus))
    assert (found["energy_of"], found["note"]) == ("GPUs", "processors: only root may read RAPL there")


def test_processors_of_shares_of_one_machine_are_one_node(tmp_path: Path) -> None:
    cell = make_cell(nodes=2)
    analysis = made(tmp_path / "s", load(package_j=4e3, rapl="read"), prices={"currency": "CHF", "node_hour": 1.0}, cell=cell)
    assert row(analysis)["run_price"] == pytest.approx(2 * row(analysis)["run_process_h"] / 2)
    records = [json.loads(path.read_text()) for path in (tmp_path / "s").glob("runs/*/record.json")]
    for record in records:
        for node in record["nodes"]:
            node["hostname"] = "here"
    write_records(tmp_path / "s", records)
    found = row(analysed(tmp_path / "s"))
    assert found["run_price"] == pytest.approx(found["run_process_h"] / 2)
    assert found["watts"] == pytest.approx(4e3 / 40)
    assert row(made(tmp_path / "t", None, prices={"currency": "CHF", "gpu_hour": 1.0}, cell=cell))["run_price"] is None, "it had no GPU"


def test_each_row_stands_beside_its_cell_whatever_the_order(tmp_path: Path) -> None:
    cells = [make_cell(nodes=nodes) for nodes in (1, 2, 4)]
    analysis = collected(tmp_path / "s", [make_record(cell) for cell in cells], repeats=1)
    found = [{"source": cell.source, "cell_id": cell.cell_id, "nodes": cell.cell.nodes} for cell in analysis.cells]
    kept, rows = rows_of(analysis, [found[2], found[0]])
    assert [(cell.cell.nodes, row["nodes"]) for cell, row in zip(kept, rows, strict=True)] == [(1, 1), (4, 4)]


def test_tokens_are_not_samples(tmp_path: Path) -> None:
    cell = make_cell(device="cuda", framework="mine", program={"name": "mine", "command": ["x"], "unit": "tokens"})
    known = load(16e3, package_j=None, rapl="none")
    tokens = {"performance.tokens": 400 * 32 * 100, "performance.tokens_per_s": 32_000.0}
    found = row(made(tmp_path / "s", known, prices=PRICES, cell=cell, **tokens))
    assert found["per_joule"] == pytest.approx(400 * 32 * 100 / 16e3)
    assert found["epoch_kwh"] == pytest.approx(12_800 / 320 * 16e3 / 40 / 3.6e6)
    assert found["epoch_price"] == pytest.approx(12_800 / 320 / 3600 * 2.5)


def test_an_epoch_is_of_training(tmp_path: Path) -> None:
    cell = make_cell(device="cuda", mode="infer")
    found = row(made(tmp_path / "s", load(1e3), cell=cell, prices=PRICES))
    assert (found["epoch_kwh"], found["epoch_price"]) == (None, None)
    assert found["run_price"] is not None


@pytest.mark.parametrize("value", [{"currency": "EUR", "gpu_hour": -1}, {"gpu_hour": 1}, "free", {"currency": 5}, {"currency": "x" * 99}])
def test_prices_that_are_none_are_no_prices(value: Any) -> None:
    assert prices_of({"prices": value}) is None
    assert prices_of({"prices": {"currency": "EUR", "kwh": 0}}) == Prices(currency="EUR", kwh=0)


def test_failed_runs_have_no_row(tmp_path: Path) -> None:
    record = make_record(make_cell(), status="oom", status_reason="no memory", performance=None)
    assert cost(collected(tmp_path / "s", [record])).num_rows == 0
