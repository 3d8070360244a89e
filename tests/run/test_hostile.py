"""A hostile program without a container: its node program neither follows nor waits for what it has planted."""

from __future__ import annotations

import pytest

from tests.run.hostile import a_pipe_freezes_nobody, links_lead_nowhere
from tests.run.world import World

pytestmark = pytest.mark.slow


def test_links_among_the_results_lead_nowhere(world: World) -> None:
    links_lead_nowhere(world)


def test_a_pipe_in_the_place_of_events_ends_as_an_error_and_freezes_nobody(world: World) -> None:
    a_pipe_freezes_nobody(world)
