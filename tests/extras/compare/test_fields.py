"""What differs between records: each field is found, and only it."""

import copy
import re
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import msgspec
import pytest

from extras.compare.fields import OUTCOMES, differing, facts_of, is_outcome, shown, together
from tests.workflow.report.builder import make_cell
from workflow.run.record.model import Reported, RunRecord, plain
from workflow.study.cell import Cell

Place = tuple[str | int, ...]
VALUES: dict[Any, Any] = {str: "text", int: 7, float: 0.5, bool: True, Reported: "told"}


def filled(kind: Any) -> Any:
    """A value of a type of the record's tree, with nothing left out."""
    inner = plain(kind)
    if inner is Cell:
        return msgspec.convert(make_cell(device="cuda"), Cell).to_json()
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        return {field.encode_name: filled(field.type) for field in msgspec.structs.fields(inner)}
    if get_origin(inner) is tuple:
        return [filled(one) for one in get_args(inner) if one is not ...]
    if get_origin(inner) is not None:
        options = [one for one in get_args(inner) if one not in (type(None), msgspec.UnsetType)]
        return options[0] if isinstance(options[0], str) else filled(options[0])
    return VALUES[inner]


def leaves(value: Any, place: Place = ()) -> Iterator[Place]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        yield place
    else:
        for key, one in inner:
            yield from leaves(one, (*place, key))


def changed(record: Any, place: Place, *, to_null: bool = False) -> Any:
    found = copy.deepcopy(record)
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    old = inner[place[-1]]
    other = (not old) if isinstance(old, bool) else f"{old}x" if isinstance(old, str) else old + 1 if old is not None else 5
    inner[place[-1]] = None if to_null else other
    return found


def named(place: Place) -> str:
    """The place as a field is called: entries of a list of objects are `[]`, a list of plain values is one field."""
    words = ""
    for index, key in enumerate(place):
        if isinstance(key, str):
            words += f".{key}"
        elif any(isinstance(later, str) for later in place[index:]):
            words += "[]"
        else:
            break
    return words.removeprefix(".")


RECORD = filled(RunRecord) | {"provenance": {**filled(RunRecord)["provenance"], "own key of a program": "one"}}
LEAVES = list(leaves(RECORD))


def test_a_record_has_all_of_its_fields_here() -> None:
    assert {"nodes[].gpus[].uuid", "cell.optimizer.learning_rate", "performance.step_s.p99", "provenance.own key of a program"} <= set(
        map(named, LEAVES)
    )
    assert len(LEAVES) > 200


@pytest.mark.parametrize("to_null", [False, True])
def test_two_runs_that_differ_in_any_field_list_exactly_that_field(to_null: bool) -> None:
    one = facts_of(RECORD)
    assert differing(one, one) == []
    for place in LEAVES:
        if to_null and isinstance(place[-1], int):
            continue
        path, other = named(place), facts_of(changed(RECORD, place, to_null=to_null))
        if one.get(path) == other.get(path):  # an empty list or null in the cell, which has no value to take away
            assert to_null, place
            continue
        assert [field for field in one.keys() | other.keys() if one.get(field) != other.get(field)] == [path]
        assert differing(one, other) == differing(other, one) == ([] if is_outcome(path) else [path])


def test_each_outcome_is_a_field_of_the_record() -> None:
    fields = set(map(named, LEAVES))
    for prefix in OUTCOMES:
        assert any(re.match(rf"{re.escape(prefix)}($|[.\[])", field) for field in fields), prefix


def test_what_runs_are_made_of_is_no_outcome() -> None:
    made_of = ("nodes[].hostname", "nodes[].gpus[].model", "provenance.git_sha", "cell.nodes", "engine", "dataset.digest", "exclusive")
    assert not any(map(is_outcome, made_of))


def test_values_of_several_runs_stand_together() -> None:
    one = together([facts_of({"site": "a", "warnings": []}), facts_of({"site": "b"})])
    assert one == {"site": {'"a"', '"b"'}}
    assert shown(one["site"]) == ["a", "b"]
    assert differing(one, facts_of({"site": "b"})) == ["site"]
    assert differing(facts_of({"cell": {"nodes": 1}}), facts_of({"cell": {"nodes": "1"}})) == ["cell.nodes"]
