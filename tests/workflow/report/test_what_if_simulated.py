"""What a removal brings, by the what-ifs and the anchor, against simulated steps of which the truth is known.

Each rank waits for its loader, computes, and exchanges buckets while it goes backward; a bucket is exchanged when all ranks have it. The
truth is the same simulation, with the same random times, without the part.
"""

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import pytest

from workflow.report.bounds import _without_exchange
from workflow.report.cells import ratio
from workflow.run.record.events import Step
from workflow.run.record.step_parts import parts_of, what_if

STEPS = 400
BUCKETS = 4
AHEAD = 4
FORWARD, BACKWARD, OPTIMIZER = 40.0, 60.0, 5.0


@dataclass(frozen=True, kw_only=True)
class World:
    """`load`: time of a batch, of the first rank `slow_load` more; `exchange`: time of all buckets; `jitter`: deviation of the logarithm of
    each part; `slow`: how much longer the first rank computes; `contended`: how much longer a backward beside an exchange takes; `hook`:
    what a rank does for an exchange, whether anything is sent or not."""

    ranks: int = 8
    load: float = 0.0
    slow_load: float = 0.0
    exchange: float = 60.0
    jitter: float = 0.1
    slow: float = 0.0
    contended: float = 0.0
    hook: float = 0.0
    exchanges: bool = True


def simulate(world: World) -> list[dict[int, Step]]:
    """Return the steps of each rank."""
    rng = random.Random(0)
    now, loaded, network = [0.0] * world.ranks, [0.0] * world.ranks, 0.0
    taken: list[list[float]] = [[] for _ in now]
    found: list[dict[int, Step]] = [{} for _ in now]
    for number in range(STEPS):
        began, parts, ready = list(now), [], []
        for rank in range(world.ranks):
            noise = [math.exp(rng.gauss(0, world.jitter)) for _ in range(3)]
            loaded[rank] = max(loaded[rank], taken[rank][-AHEAD] if number >= AHEAD else 0.0) + world.load + world.slow_load * (rank == 0)
            start = max(now[rank], loaded[rank])
            taken[rank].append(start)
            forward, backward = FORWARD * noise[0] + world.slow * (rank == 0), BACKWARD * noise[1]
            backward *= 1 + world.contended * (world.exchanges and world.exchange > 0)
            parts.append({"input_s": start - now[rank], "forward_s": forward, "backward_s": backward, "optimizer_s": OPTIMIZER * noise[2]})
            ready.append([start + forward + backward * (bucket + 1) / BUCKETS for bucket in range(BUCKETS)])
        for bucket in range(BUCKETS):
            network = max(network, *(own[bucket] for own in ready)) + world.exchange / BUCKETS
        for rank, own in enumerate(parts):
            done = (max(network, ready[rank][-1]) if world.exchanges else ready[rank][-1]) + world.hook
            now[rank] = done + own["optimizer_s"]
            rest: dict[str, Any] = {"measured": True, "samples": 1, "exchange_s": done - ready[rank][-1]}
            found[rank][number] = Step(step=number, seconds=now[rank] - began[rank], **own, **rest)
    return found


MEASURED = range(20, STEPS)


def mean_step(world: World) -> float:
    ranks = simulate(world)
    return max(math.fsum(rank[number].seconds for number in MEASURED) / len(MEASURED) for rank in ranks)


def row(world: World) -> dict[str, Any]:
    """Return what a verdict is made of, as records.parquet has it."""
    ranks = simulate(world)
    straggler = 0 if world.slow or world.slow_load else None
    found, parts = what_if(ranks, MEASURED, "train", straggler), parts_of(ranks, MEASURED)
    assert found is not None
    assert parts is not None
    of_parts = {f"part_{name}_s": getattr(parts, f"{name}_s") for name in ("step", "exposed", "skew")}
    return {"repeat": 1, **of_parts, **{f"if_{name}": getattr(found, name) for name in found.__struct_fields__}}


WORLDS = {
    "network": World(exchange=120),
    "network of two ranks": World(ranks=2, exchange=120),
    "even ranks": World(jitter=0.0),
    "ranks that vary": World(jitter=0.2),
    "straggler": World(slow=80, jitter=0.05),
    "input": World(load=200, exchange=30, jitter=0.05),
    "input of one rank": World(slow_load=200, exchange=30, jitter=0.05),
}


@pytest.mark.parametrize("name", WORLDS)
def test_what_a_removal_brings_is_right_where_nothing_else_was_hidden(name: str) -> None:
    world = WORLDS[name]
    found = row(world)
    near = {"rel": 0.02}
    assert found["if_step_s"] == pytest.approx(mean_step(world), **near)
    assert found["if_no_input_s"] == pytest.approx(mean_step(replace(world, load=0.0, slow_load=0.0)), **near)
    if not world.load and not world.slow_load:  # a loader that is as slow as the rest comes to light: below
        assert found["if_no_exposed_s"] == pytest.approx(mean_step(replace(world, exchange=0.0)), **near)
    if world.slow:
        assert found["if_no_skew_s"] == pytest.approx(mean_step(replace(world, slow=0.0)), **near)


def test_input_that_an_exchange_hid_comes_to_light_so_that_the_estimate_is_the_most() -> None:
    """No wait for input is seen; without an exchange the loader would be too slow. An anchor sees it, but for what ranks vary."""
    world = World(load=150, exchange=150, jitter=0.05)
    found, truth = row(world), mean_step(replace(world, exchange=0.0))
    assert found["if_no_exposed_s"] < 0.8 * truth
    assert _anchored(world) == pytest.approx(truth, rel=0.06)


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("jitter", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("contended", [0.0, 0.2])
def test_an_anchor_without_an_exchange_does_not_take_away_the_waiting_for_each_other(ranks: int, jitter: float, contended: float) -> None:
    world = World(ranks=ranks, jitter=jitter, contended=contended, exchange=120)
    truth = mean_step(replace(world, exchange=0.0))
    assert _anchored(world) == pytest.approx(truth, rel=0.01)
    if ranks == 8 and jitter:
        assert mean_step(replace(world, exchanges=False)) < (1 - 0.8 * jitter) * truth, "its own steps are shorter than that"


def test_what_the_hook_of_an_exchange_takes_no_network_takes_away() -> None:
    world = World(hook=10, exchange=120)
    truth = mean_step(replace(world, exchange=0.0))
    assert row(world)["if_no_exposed_s"] < truth - 9
    assert _anchored(world) == pytest.approx(truth, rel=0.015)


def _anchored(world: World) -> float:
    """Return the step that the anchor says would be left."""
    cell, anchor = row(world), row(replace(world, exchanges=False))
    pair = _without_exchange([anchor], [cell])
    assert pair is not None
    return float(cell["if_step_s"] / ratio(*pair).value)
