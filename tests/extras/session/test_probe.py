"""What a look at a session finds where a part of it fails."""

from pathlib import Path

import pytest

from base.errors import StagingError
from extras.session.probe import look
from extras.session.request import STOP


@pytest.mark.parametrize("kind", ["notebook", "run"])
def test_the_end_is_requested_although_the_rest_of_a_look_fails(tmp_path: Path, kind: str) -> None:
    program = (kind, [], str(tmp_path / "no-token"))
    with pytest.raises((OSError, StagingError)):
        look(str(tmp_path), program, "$NOT_SET_HERE", 7)
    (tmp_path / STOP).touch()
    assert look(str(tmp_path), program, "$NOT_SET_HERE", 7) == (True, None, 7)
