"""Whose processor time it is: ours, the kernel's, or somebody else's; by what /proc tells of every process."""

import json
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from cluster.load.readers import (
    MAX_W,
    PAGE_BYTES,
    Processors,
    Rapl,
    Throttling,
    kernel_seen,
    machine_readers,
    own_seconds,
    parse_counts,
    parse_cpu,
    parse_pressure,
    process_trees,
    read_memory,
    read_pressure,
    used_since,
)
from cluster.processes import TICKS_PER_S, ProcessState

PARENTS = {1: 0, 2: 0, 10: 1, 11: 10, 12: 11, 13: 12, 20: 1, 21: 20, 30: 2, 40: 1, 41: 40}
"""init, kthreadd; a shell 10, Snakemake 11, supervisor 12, its node program 13; another's shell 20 and program 21; a kernel thread 30; a
container's shim 40, and what runs in it 41."""


def states(waited: dict[int, float] | None = None, **seconds: float) -> dict[int, ProcessState]:
    return {
        pid: ProcessState(pid, "R", parent, 0, ticks(seconds.get(f"p{pid}", 0)), ticks((waited or {}).get(pid, 0)))
        for pid, parent in PARENTS.items()
    }


def ticks(seconds: float) -> int:
    return round(seconds * TICKS_PER_S)


def test_ours_are_below_the_roots_and_what_is_marked() -> None:
    asked: list[int] = []

    def marked(state: ProcessState) -> bool:
        asked.append(state.pid)
        return state.pid == 41

    trees = process_trees(states(), [13, 12], marked)
    assert trees.ours == {12, 13, 41}
    assert trees.above == {1, 10, 11}
    assert set(asked) == {20, 21, 40, 41}, "nobody asks the kernel's threads, nor ours, for their environment"


def test_where_kthreadd_cannot_be_seen_its_number_is_anybody_s() -> None:
    """As in a pid namespace."""
    assert process_trees(states(), [13, 12], lambda state: state.pid == 30).ours == {12, 13}
    assert process_trees(states(), [13, 12], lambda state: state.pid == 30, kernel=None).ours == {12, 13, 30}


def test_what_has_ended_goes_on_counting_in_its_parent() -> None:
    trees = process_trees(states(), [13, 12], lambda _state: False)
    before = own_seconds(states(p13=1.0), trees, everywhere)
    after = own_seconds(states({12: 1.5}, p11=0.25), trees, everywhere)
    assert (before, after) == (1.0, 1.75)
    assert own_seconds(states({11: 9.0}), trees, everywhere) == 0.0, "what a shell above has waited for was none of ours"


def test_only_the_part_on_the_runs_cores_counts() -> None:
    trees = process_trees(states(), [13], lambda _state: False)
    assert own_seconds(states(p13=4.0), trees, lambda pid: 0.5 if pid == 13 else 1.0) == 2.0


def test_one_that_came_meanwhile_used_all_its_ticks_now() -> None:
    before = {pid: state for pid, state in states(p21=1.0, p20=1.0).items() if pid != 30}
    assert only(used_since(before, states(p20=1.0, p21=3.0, p30=0.5).values())) == {21: 2.0, 30: 0.5}
    again = {**states(), 21: ProcessState(21, "R", 20, start=5, cpu=ticks(0.5))}
    assert only(used_since(before, again.values())) == {21: 0.5}, "another process with the same number"


def only(used: dict[int, float], but: Iterable[int] = ()) -> dict[int, float]:
    return {pid: seconds for pid, seconds in used.items() if pid not in but}


def everywhere(_pid: int) -> float:
    return 1.0


# The texts of /proc, of this machine and of others; what is no such text gives nothing, and never an error.


CAPTURED = Path(__file__).parents[2] / "captured" / "proc"


def texts(name: str) -> dict[str, str]:
    return dict(json.loads((CAPTURED / f"{name}.json").read_text())["files"])


def as_proc(directory: Path, name: str) -> Path:
    for path, text in texts(name).items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    return directory


def test_only_the_cores_of_the_run_count() -> None:
    old = texts("linux-3.10-no-psi")["stat"]
    two = parse_cpu(old, {1, 3})
    assert two is not None
    assert two.idle == pytest.approx((4100 + 130 + 4100 + 130) / TICKS_PER_S)
    assert (two.steal, two.interrupts) == (0.0, pytest.approx((10 + 10 + 5 + 5) / TICKS_PER_S))
    assert parse_cpu(old, {3, 4}) is None, "a core that is not there"
    assert parse_cpu(old, set()) is None


def test_this_machine(tmp_path: Path) -> None:
    here = as_proc(tmp_path, "linux-6.18-vm")
    cpu = parse_cpu((here / "stat").read_text(), {0, 1})
    assert cpu is not None
    assert cpu.idle > cpu.steal > 0
    pressure, memory = read_pressure(0.0, here), read_memory(0.0, here)
    assert set(pressure) == {f"{kind}_{who}" for kind in ("cpu", "memory", "io") for who in ("some", "full")}
    assert set(memory) == {"available", "swapped_in", "swapped_out"}
    assert 1 << 30 < memory["available"] < 1 << 40


def test_a_kernel_that_does_not_count_says_nothing(tmp_path: Path) -> None:
    old = as_proc(tmp_path / "old", "linux-3.10-no-psi")
    assert read_pressure(0.0, old) == {}
    assert read_memory(0.0, old) == {"swapped_in": 12 * PAGE_BYTES, "swapped_out": 40 * PAGE_BYTES}
    newer = as_proc(tmp_path / "newer", "linux-5.4-psi")
    assert read_pressure(0.0, newer) == {
        **{"cpu_some": 0.15, "memory_some": 30e-6, "memory_full": 7e-6, "io_some": 90e-6, "io_full": 60e-6},
    }
    assert Throttling([0, 1], tmp_path / "no-sys")(0.0) == {}


def test_heat_is_counted_over_all_cores(tmp_path: Path) -> None:
    for core, count in {0: "3\n", 1: "4\n"}.items():
        (tmp_path / f"cpu{core}" / "thermal_throttle").mkdir(parents=True)
        (tmp_path / f"cpu{core}" / "thermal_throttle" / "core_throttle_count").write_text(count)
    assert Throttling([0, 1], tmp_path)(0.0) == {"throttled": 7}


def test_damaged_texts_are_nothing_or_numbers() -> None:
    """One letter after the other is exchanged, or the text is cut."""
    chance = random.Random(7)
    names = {"MemAvailable": "a", "pswpin": "b", "voluntary_ctxt_switches": "c"}
    whole = [text for name in ("linux-6.18-vm", "linux-5.4-psi") for text in texts(name).values()]
    for _ in range(400):
        text = chance.choice(whole)
        place = chance.randrange(len(text))
        damaged = text[:place] + chance.choice(["", "\0", "-", "9" * 30, "\n", " ", "x", "\u0665", "cpu", "total="]) + text[place + 1 :]
        damaged = damaged[: chance.choice([len(damaged), place])]
        cpu = parse_cpu(damaged, {0, 1})
        assert cpu is None or min(cpu) >= 0
        assert all(seconds >= 0 for seconds in (parse_pressure(damaged) or {}).values())
        assert all(count >= 0 for count in parse_counts(damaged, names).values())


def test_the_kernel_s_threads_are_told_only_where_they_can_be_seen(tmp_path: Path) -> None:
    """With hidepid, or in a pid namespace, process 2 is nobody, or anybody."""
    (tmp_path / "2").mkdir()
    for name, seen in ((None, False), ("bash\n", False), ("kthreadd\n", True)):
        if name is not None:
            (tmp_path / "2" / "comm").write_text(name)
        assert kernel_seen(tmp_path) is seen
        assert ("kernel" in Processors([0], [1], "", tmp_path).read_all(0.0)) is seen


def powercap(root: Path, zones: dict[str, tuple[str, int, int]]) -> Path:
    """As /sys/class/powercap lies: zone -> name, counter and range in microjoules."""
    for zone, (name, counter, most) in zones.items():
        (root / zone).mkdir(parents=True, exist_ok=True)
        for file, text in {"name": name, "energy_uj": str(counter), "max_energy_range_uj": str(most)}.items():
            (root / zone / file).write_text(f"{text}\n")
    return root


def test_sockets_and_their_memory_count_once(tmp_path: Path) -> None:
    """Two sockets of a server: the cores are a part of their socket, and psys holds all."""
    zones = {
        "intel-rapl:0": ("package-0", 1_000_000, 262_143_328_850),
        "intel-rapl:0:0": ("core", 500_000, 262_143_328_850),
        "intel-rapl:0:1": ("dram", 200_000, 65_712_999_613),
        "intel-rapl:1": ("package-1", 3_000_000, 262_143_328_850),
        "intel-rapl:2": ("psys", 9_000_000, 262_143_328_850),
    }
    rapl = Rapl(powercap(tmp_path, zones), 0.0)
    assert rapl.state == "read"
    assert rapl(0.0) == {"package_j": 0.0}
    powercap(tmp_path, {**zones, "intel-rapl:0": ("package-0", 11_000_000, 262_143_328_850), "intel-rapl:0:0": ("core", 9_500_000, 0)})
    assert rapl(1.0) == {"package_j": 10.0}
    powercap(tmp_path, {"intel-rapl:0:1": ("dram", 1_200_000, 65_712_999_613), "intel-rapl:1": ("package-1", 5_000_000, 262_143_328_850)})
    assert rapl(2.0) == {"package_j": 13.0}, "a joule of memory, two of the other socket"


def test_a_counter_that_begins_again_goes_on(tmp_path: Path) -> None:
    most = 262_143_328_850
    rapl = Rapl(powercap(tmp_path, {"intel-rapl:0": ("package-0", most - 2_000_000, most)}), 0.0)
    powercap(tmp_path, {"intel-rapl:0": ("package-0", 3_000_000, most)})
    assert rapl(1.0) == {"package_j": 5.0}
    powercap(tmp_path, {"intel-rapl:0": ("package-0", 4_500_000, most)})
    assert rapl(2.0) == {"package_j": 6.5}


@pytest.mark.parametrize("text", ["", "-5", "nonsense"])
def test_a_counter_that_cannot_be_read_ends_it(tmp_path: Path, text: str) -> None:
    rapl = Rapl(powercap(tmp_path, {"intel-rapl:0": ("package-0", 5, 65_532_610_987)}), 0.0)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text(text)
    assert rapl(1.0) == {}
    assert rapl(2.0) == {}


def test_a_pause_in_which_the_counter_may_have_begun_again_twice_ends_it(tmp_path: Path) -> None:
    most = 65_532_610_987
    rapl = Rapl(powercap(tmp_path, {"intel-rapl:0": ("package-0", 0, most)}), 0.0)
    powercap(tmp_path, {"intel-rapl:0": ("package-0", 6_000_000_000, most)})
    assert rapl(60.0) == {"package_j": 6000.0}
    powercap(tmp_path, {"intel-rapl:0": ("package-0", 12_000_000_000, most)})
    assert rapl(130.0) == {}, "70 s at 1000 W are more than the range"
    assert rapl(131.0) == {}


def test_long_runs_are_looked_at_often_enough_for_the_counters(tmp_path: Path) -> None:
    place = powercap(tmp_path, {"intel-rapl:0": ("package-0", 0, 65_532_610_987)})
    pauses = [longest for _, _, longest in machine_readers([0], [1], "", Rapl(place))]
    assert min(pauses) * MAX_W <= 65_532
    assert len(machine_readers([0], [1], "", Rapl(tmp_path / "none"))) == len(pauses) - 1


def test_why_there_is_no_energy_of_processors(tmp_path: Path) -> None:
    assert Rapl(tmp_path / "nothing").state == "none"
    place = powercap(tmp_path, {"intel-rapl:0": ("package-0", 5, 100)})
    (place / "intel-rapl:0" / "energy_uj").unlink()
    (place / "intel-rapl:0" / "energy_uj").symlink_to("nowhere")  # root, as whom tests may run, is refused nothing
    rapl = Rapl(place)
    assert (rapl.state, rapl(1.0)) == ("not permitted", {})
