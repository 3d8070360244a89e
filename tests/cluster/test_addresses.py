import pytest

from base.errors import AllocationError
from cluster import addresses


def test_this_machine_reaches_itself() -> None:
    assert addresses.source_address("127.0.0.1") == "127.0.0.1"
    assert addresses.here("127.0.0.1", None) == ("127.0.0.1", "lo")
    assert addresses.here("localhost", "lo") == ("127.0.0.1", "lo")


def test_names_that_nobody_knows_have_no_address() -> None:
    assert addresses.resolve("127.0.0.1") == "127.0.0.1"
    assert addresses.resolve("no such host") is None


def test_a_run_on_this_machine_listens_on_it_alone() -> None:
    assert addresses.listening_address(["127.0.0.1"], None) == "127.0.0.1"
    assert addresses.listening_address([], None) == "127.0.0.1"
    assert addresses.listening_address(["10.9.8.7"], "lo") == "127.0.0.1"


def test_an_interface_that_is_not_here_is_refused_with_those_that_are() -> None:
    with pytest.raises(AllocationError, match="lo"):
        addresses.address_of("ib17")
