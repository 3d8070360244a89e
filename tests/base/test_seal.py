"""A changed record is noticed, whichever bit of it changed; what a flip does not change, it may."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from base.errors import PushError, RecordError
from base.jsonfile import publish_json
from base.seal import compare_with_disk, publish_checked, publish_sealed, read_sealed, read_sealed_bytes, seal_state, sealed_text

RECORD: dict[str, Any] = {
    "schema": "slipway.run/1",
    "run_id": "lenet-digits-b32-n1-g1-8380a70504-r1",
    "status_reason": 'a line\n "seal": "' + 64 * "a" + '",\n in a text',
    "performance": {"step_s": {"p50": 0.125, "p95": 1e-9}, "seal": "not the record's"},
    "losses": [[0, 2.5], [10, 0.25]],
    "time": {"start": "2026-01-02T03:04:05.678+00:00"},
    "warnings": ["ä"],
}


def test_what_is_sealed_is_read_again_with_its_seal(tmp_path: Path) -> None:
    publish_sealed(tmp_path / "record.json", RECORD)
    found = read_sealed(tmp_path / "record.json")
    assert len(found.pop("seal")) == 64
    assert found == RECORD
    assert seal_state((tmp_path / "record.json").read_bytes()) == "sealed"
    assert sealed_text(found) == sealed_text({**found, "seal": "an older one"}) == (tmp_path / "record.json").read_bytes()


def test_a_record_from_before_there_were_seals_is_read_as_it_is(tmp_path: Path) -> None:
    publish_json(tmp_path / "record.json", RECORD)
    assert seal_state((tmp_path / "record.json").read_bytes()) == "unsealed"
    assert read_sealed(tmp_path / "record.json") == RECORD


@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"indent": 1, "separators": (",", " : ")}, {"separators": (",", ":")}])
def test_a_seal_in_another_layout_is_broken(layout: dict[str, Any]) -> None:
    """As jq, json.dump and editors write what they have changed: it would pass for a record from before there were seals."""
    changed = {**json.loads(sealed_text(RECORD)), "losses": [[0, 0.5]]}
    assert seal_state(json.dumps(changed, **layout).encode()) == "broken"
    del changed["seal"]
    assert seal_state(json.dumps(changed, **layout).encode()) == "unsealed", "the key of that name is further down"


@pytest.mark.parametrize("record", [RECORD, {}, {"a": 1}, {"zebra": 1}])
def test_no_bit_can_change_unnoticed(record: dict[str, Any]) -> None:
    """A flip in the name of the seal hides the seal, and adds a key that no record has; all others change the text that was sealed."""
    text = sealed_text(record)
    for position in range(8 * len(text)):
        flipped = bytearray(text)
        flipped[position // 8] ^= 1 << position % 8
        if seal_state(bytes(flipped)) == "broken":
            continue
        try:
            value = json.loads(bytes(flipped))
        except ValueError:
            continue
        strangers = value.keys() - record.keys()
        assert {key: value[key] for key in value if key not in strangers} == record
        assert len(strangers) == 1
        assert strangers != {"seal"}


@pytest.mark.processes
def test_a_person_can_check_it_with_what_every_machine_has(tmp_path: Path) -> None:
    publish_sealed(tmp_path / "record.json", RECORD)
    by_hand = "grep -v '^ \"seal\": ' record.json | sha256sum"
    found = subprocess.run(["sh", "-c", by_hand], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.split()[0] == read_sealed(tmp_path / "record.json")["seal"]


def test_the_error_names_the_file_and_says_where_another_copy_lies(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    publish_sealed(path, RECORD)
    path.write_bytes(path.read_bytes().replace(b"0.125", b"0.025"))
    with pytest.raises(RecordError, match=f"{path}.*seal does not fit.*another copy"):
        read_sealed(path)
    with pytest.raises(RecordError, match="seal"):
        read_sealed_bytes(path)


def test_what_lies_there_is_compared_with_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    publish_checked(path, b"whole")
    compare_with_disk(path, b"whole")
    with pytest.raises(PushError, match="storage changed it"):
        compare_with_disk(path, b"whale")
