"""`slipway remote` against a real login node: the line is cut, the laptop dies, and the same command again goes on."""

from pathlib import Path

import pytest

from tests.cluster import sshd
from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from tests.slurm.cuts import JOB, PHASES, RUN_S, look, play
from tests.slurm.laptop import Laptop
from tests.slurm.test_profiles import Place

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(sshd.missing() is not None, reason="no sshd in namespaces here: root, openssh-server, iproute2"),
]


@pytest.mark.parametrize("totp", [False, True])
def test_twenty_cuts_lose_nothing_and_do_nothing_twice(cluster: Cluster, tmp_path: Path, totp: bool) -> None:
    counts = play(cluster, tmp_path, cuts=20, seed=14, totp=totp)
    assert counts.total() == 20
    assert {phase for phase, _ in counts} == set(PHASES)


def test_what_one_login_node_has_begun_another_goes_on_with(cluster: Cluster, tmp_path: Path) -> None:
    """Each command meets the other login node behind the same name, also the one that waits when its connection ends."""
    place, laptop = Place(cluster, "logins"), Laptop(cluster, tmp_path, logins=("login", "n3"))
    study = f"{place.name}.yaml"
    try:
        laptop.open(place.environ(RUN_S))
        laptop.slipway("setup", "--slipway", str(laptop.gate.directory / "slipway")).ended()
        laptop.bring(place)
        laptop.slipway("plan", study).ended()
        waiting = laptop.slipway("submit", study, "--wait")
        wait_until(lambda: JOB.search(waiting.said()) is not None or waiting.process.poll() is not None, 300, "the job is told")
        laptop.turn_to("n3")
        laptop.drop("login")
        assert "4 of 4 runs have a result" in waiting.ended()
        said = laptop.slipway("status", study).ended()
        laptop.turn_to("login")
        assert place.started()[0][0] in said, said
        assert "report.html" in laptop.slipway("report", study).ended()
        assert (laptop.folder / "results" / place.name / "report.html").read_bytes() == (place.results / "report.html").read_bytes()
        look(laptop, place)
    finally:
        laptop.close()
        place.close()
