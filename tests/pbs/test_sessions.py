"""Sessions as jobs of OpenPBS: as those of Grid Engine."""

from __future__ import annotations

import pytest

from tests.minicluster import Cluster
from tests.sge.test_sessions import serve_and_end

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_a_server_is_its_users_alone_and_ends_by_stop_and_by_qdel(cluster: Cluster) -> None:
    serve_and_end(cluster)
