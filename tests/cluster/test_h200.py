"""What an H200 answered, and what is made of it: tests/captured/nvidia-smi/h200-*."""

from pathlib import Path

import pytest

from cluster.gpus import listing
from cluster.gpus.decision import listed_uuids
from cluster.gpus.listing import (
    RENAMED,
    THROTTLE,
    Gpu,
    parse_fields,
    parse_gpus,
    parse_instances,
    query_apps,
    query_fields,
    query_gpus,
)
from cluster.load.readers import LOOK_FIELDS, look_of
from extras.doctor.machine import judge_gpus
from tests.cluster.smi import answer, install

UUID = "GPU-0efe21eb-f1da-7cc8-3eb9-8366d4dd1e85"
CARD = Gpu(0, UUID, "NVIDIA H200", "00000000:00:06.0")


def test_it_is_listed_by_both_questions_with_one_uuid() -> None:
    assert parse_gpus(answer("h200-query")) == (CARD,)
    assert listed_uuids(answer("h200-list")) == (UUID,)
    assert parse_instances(answer("h200-list")) == {UUID: ()}


@pytest.mark.processes
def test_it_is_asked_as_it_was_there(path: Path) -> None:
    install(path, ["h200-query", "h200-list", "h200-compute-apps", "h200-health-at-work"])
    assert query_gpus() == (CARD,)
    (app,) = query_apps()
    assert (app.gpu, app.pid, app.used_mib, app.name) == (UUID, 659, 1002, "/usr/bin/python3")
    assert listing.query_gpu_faults((UUID,)) == ()


@pytest.mark.parametrize("case", ["h200-health", "h200-health-at-work"])
def test_idle_and_at_its_power_limit_it_is_well(case: str) -> None:
    """It has no retired pages, which it says in brackets; a power cap is no fault."""
    (found,) = parse_fields(answer(case), listing.FIELDS)
    assert (found["retired_pages.pending"], found["remapped_rows.failure"]) == ("[N/A]", "No")
    assert list(listing.faults_of(found)) == []


def test_an_unknown_field_is_named_as_it_is_read() -> None:
    found = listing._UNKNOWN_FIELD.search(answer("h200-unknown-field"))
    assert found
    assert found[1] == "colour"


@pytest.mark.processes
def test_driver_580_knows_both_names_of_what_holds_a_clock_down(path: Path) -> None:
    install(path, ["h200-load", "h200-load-new-name"])
    (work,), (new,) = (map(look_of, query_fields(LOOK_FIELDS | {"reasons": name}, 60.0)) for name in (THROTTLE, RENAMED[THROTTLE]))
    (idle,) = map(look_of, parse_fields(answer("h200-load-idle"), LOOK_FIELDS))
    assert idle == {
        "uuid": UUID, "mhz": 345, "max_mhz": 1980, "reasons": 1, "celsius": 39, "watts": 80.06, "busy_ratio": 0.0, "ecc_errors": 0,
    }  # fmt: skip
    assert (work["busy_ratio"], work["reasons"], work["watts"]) == (1.0, 4, 689.66)
    assert (new["busy_ratio"], new["reasons"], new["watts"]) == (1.0, 4, 690.43)


def doctor_fields(case: str) -> list[dict[str, str]]:
    """The captured answers, which had persistence_mode too, and no UUID."""
    names = ("model", "driver", "mig", "persistence", "used")
    return [dict(zip(names, map(str.strip, line.split(",")), strict=True)) for line in answer(case).splitlines()]


def test_the_doctor_says_what_it_is_and_that_it_is_busy() -> None:
    (said,) = judge_gpus(doctor_fields("h200-doctor"), "cuda", 1, True)
    assert (said.level, said.text) == ("ok", "1 x NVIDIA H200; driver 580.159.04")
    levels = [found.level for found in judge_gpus(doctor_fields("h200-doctor-at-work"), "cuda", 1, True)]
    assert levels == ["ok", "warning"]
