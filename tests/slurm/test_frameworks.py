"""The acceptance study of the frameworks: all that are installed here train one network on one and two nodes, each run a job of Slurm."""

import os
from functools import partial
from typing import Final

import pytest

from containers.frameworks import framework_folders, load_framework
from containers.frameworks.own_python import environment_of, what_is_missing
from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from tests.slurm.framework_rows import Finished, Kind, check_row, finish, kinds_of, study_of
from tests.slurm.place import Place

pytestmark = [pytest.mark.slow, pytest.mark.long]
FEWEST: Final = 10
"""Frameworks that the acceptance wants in the study."""
BARE: Final = [*framework_folders()]
KINDS: Final = [kind for name in BARE for kind in kinds_of(name)]


def missing(kind: Kind) -> str | None:
    spec = load_framework(kind.framework)
    if what_is_missing(spec, kind.strategy, kind.backend) is None:
        return None
    own, _ = environment_of(spec, kind.strategy, kind.backend) or (kind.framework, None)
    return f"framework {own} is not installed here: make framework NAME={own}"


@pytest.fixture(scope="module")
def finished(cluster: Cluster) -> Finished:
    """The whole study, of which nothing is left on a node."""
    installed = [kind for kind in KINDS if missing(kind) is None]
    if len({kind.framework for kind in installed}) < 2:
        pytest.skip("fewer than two frameworks are installed here: make framework NAME=jax")
    before = {node: set(cluster.processes(node)) for node in cluster.nodes}
    done = finish(Place(cluster, "bare", f"frameworks{os.getpid()}", partial(study_of, kinds=installed)), installed)
    wait_until(lambda: all(set(cluster.processes(node)) <= before[node] for node in before), 60.0, "nothing of the runs is left")
    return done


def test_the_study_has_ten_frameworks() -> None:
    left_out = {kind.framework for kind in KINDS if missing(kind) is not None}
    if len(BARE) - len(left_out) < FEWEST:
        pytest.skip(
            f"of {FEWEST} frameworks that the study should have {len(BARE) - len(left_out)} are installed here; not {sorted(left_out)}"
        )


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_a_framework_trains_the_network_of_the_others(finished: Finished, kind: Kind) -> None:
    if why := missing(kind):
        pytest.skip(why)
    check_row(finished, kind)
