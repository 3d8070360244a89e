"""`slipway doctor` on OpenPBS: as on Grid Engine."""

from __future__ import annotations

import pytest

from tests.minicluster import Cluster
from tests.sge.test_doctor import doctor_inside

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_on_the_login_node_and_on_both_nodes_of_a_job(cluster: Cluster) -> None:
    doctor_inside(cluster, without=("-I", "--"), more=("-V", "-W", "block=true", "--"))  # an interactive job needs a terminal
