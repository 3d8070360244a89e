"""The step `login`, which travels in the environment from command to command."""

from __future__ import annotations

import pytest

from workflow.commands.remote import with_time
from workflow.run.record.continuation import LOGIN, login_s, planned, with_login


def test_the_times_of_the_commands_add_up() -> None:
    laptop = with_login({}, 12.5)
    submitted = with_login(laptop, 2.25)
    assert login_s(submitted) == 14.75
    assert planned({**submitted, "SLIPWAY_SUBMISSION": "x"}, 3.0) == {}
    assert login_s(planned(submitted, 3.0)) == 17.75


def test_a_plan_made_in_a_job_that_nobody_timed_before_counts_itself() -> None:
    assert planned({"SLIPWAY_SUBMISSION": "x"}, 3.0) == {LOGIN: "3.000"}


@pytest.mark.parametrize("said", [None, "", "x", "-1", "nan", "inf"])
def test_what_is_no_time_is_not_known(said: str | None) -> None:
    assert login_s({} if said is None else {LOGIN: said}) is None


def test_the_laptop_tells_its_own_time() -> None:
    first, time, *argv = with_time(["/far/slipway", "submit", "s.yaml"])
    assert (first, argv) == ("env", ["/far/slipway", "submit", "s.yaml"])
    assert login_s({LOGIN: time.partition("=")[2]}) is not None
