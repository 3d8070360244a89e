"""Compute the numbers of a run from its events: the rate of its measured window, step times, losses, drift, replicas, stragglers. Pure.

`train`: ranks go on together, since each waits for all in the exchange of every step. The wall time is the longest of the ranks' own
windows, each from the start of its first to the end of its last measured step, by its own clock: clocks of different nodes need not agree.
Where ranks begin the window together, as ours do behind a barrier, that is the time from the last rank's begin to the last rank's end; else
it is longer, by less than a step. `infer`: nobody waits, so the rate is the sum of the ranks' own, each over the steps that it calls
measured; a slower rank works on alone at the end, and the longest window tells for how long.

The median step is no rate. Where the two differ, `uneven_cause` says what most of the difference is made of.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, Literal

from workflow.run.record.events import RankEvents, RunStop, Step
from workflow.run.record.model import Drift, Evaluation, EvaluationAt, Performance, Replicas, RunRecord, StepSeconds, Training, UnevenCause
from workflow.run.record.step_parts import parts_of, what_if, without_exchange
from workflow.run.record.window_check import ReportedWindow

# Order statistics.


def summarise(values: Sequence[float]) -> StepSeconds:
    """Compute order statistics of at least one value.

    Percentiles interpolate linearly; `stdev` is the sample's, `mad` the median distance from the median.
    """
    ordered = sorted(values)
    middle = quantile(ordered, 0.5)
    mean = math.fsum(ordered) / len(ordered)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / (len(ordered) - 1)) if len(ordered) > 1 else None
    return StepSeconds(
        n=len(ordered),
        p50=middle,
        p90=quantile(ordered, 0.9),
        p95=quantile(ordered, 0.95),
        p99=quantile(ordered, 0.99),
        mean=mean,
        stdev=spread,
        mad=quantile(sorted(abs(value - middle) for value in ordered), 0.5),
        min=ordered[0],
        max=ordered[-1],
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, interpolated linearly between neighbours."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    """Return the median of at least one value."""
    return quantile(sorted(values), 0.5)


# Stragglers: the rank for which the others wait.


SLOWER: Final = 1.1
QUARTERS: Final = 4
STRAGGLER_MIN_STEPS: Final = 20
"""A rank is named whose median work is SLOWER times the others', or more, in each quarter of a window of MIN_STEPS or more: noise that
goes on for many steps makes some rank the slowest of every window, but seldom the same one in all (`python -m benchmarks.stragglers`)."""

Work = Sequence[Sequence[float] | None]


def own_work(ranks: Sequence[Mapping[int, Step]], step: int, mode: str) -> list[float] | None:
    """Return the seconds that each rank worked in a step, or None where a rank does not report how long it waited for the others.

    In training a step ends after the exchange of gradients, at the same time on every rank, so the own work is the step without the wait
    in the exchange (`exchange_s`). In inference nothing is exchanged, and the own work is the whole step.
    """
    if mode == "infer":
        return [steps[step].seconds for steps in ranks]
    work = [took.seconds - took.exchange_s for steps in ranks if (took := steps[step]).exchange_s is not None]
    return work if len(work) == len(ranks) else None


def skew(work: Work) -> float | None:
    """Return the 95th percentile over steps of the slowest rank's own work / the median rank's.

    None for one rank, and where the own work is not known.
    """
    ratios = []
    for own in work:
        if own is None or len(own) < 2:
            return None
        if (middle := median(own)) > 0:
            ratios.append(max(own) / middle)
    return quantile(sorted(ratios), 0.95) if ratios else None


def straggler(work: Work) -> int | None:
    """Return the rank whose own work is longer than that of the others, or None if there is none or the own work is not known."""
    known = [own for own in work if own is not None and len(own) > 1]
    if len(known) < max(len(work), STRAGGLER_MIN_STEPS):
        return None
    length = len(known) / QUARTERS
    quarters = [known[round(index * length) : round((index + 1) * length)] for index in range(QUARTERS)]
    named = {_slow_rank(quarter) for quarter in quarters}
    return named.pop() if len(named) == 1 else None


def _slow_rank(work: Sequence[Sequence[float]]) -> int | None:
    medians = [median(own) for own in zip(*work, strict=True)]
    rank = max(range(len(medians)), key=medians.__getitem__)
    others = median([seconds for index, seconds in enumerate(medians) if index != rank])
    return rank if medians[rank] >= SLOWER * others else None


UNEVEN: Final = 0.05
"""How far the rate may be from what the median step says before a cause is named."""

CLOCK_RATIO: Final = 0.02
"""How much shorter than the sum of its steps a window is believed to be, as for the mark `window`: the clock of a GPU is another one."""

MAX_LENGTHS: Final = 100


@dataclass(frozen=True, kw_only=True)
class Window:
    """The measured window of the ranks that report steps: the numbers of the steps that every rank has and calls measured; and of each rank
    those that its rate is computed from, which are the same in training, and its own in inference."""

    ranks: Sequence[RankEvents]
    measured: Sequence[int]
    own: Sequence[Sequence[int]]

    def samples(self, asked: int) -> list[float]:
        """Return the samples that each rank reports; where a step does not, its share of `asked`, those of a step of all ranks."""
        share = asked / len(self.ranks)
        samples = [[rank.steps[step].samples for step in own] for rank, own in zip(self.ranks, self.own, strict=True)]
        return [math.fsum(share if count is None else count for count in rank) for rank in samples]

    def requested_samples(self, asked: int) -> int:
        """Return the number of samples that the cell requests in these steps. `asked`: samples of a step, all ranks together."""
        return asked * sum(map(len, self.own)) // len(self.own)

    def walls_s(self) -> list[float]:
        """Return the seconds of each rank's own window."""
        spans = zip(self.ranks, self.own, self.evaluations_s, strict=True)
        return [own_window(rank, own, evaluation_s) for rank, own, evaluation_s in spans]

    @cached_property
    def evaluations_s(self) -> list[float]:
        """Return the seconds that each rank evaluated between steps of its window."""
        return [
            math.fsum(lasted for step, lasted in evaluated_s(rank, self.ranks[0]).items() if own and own[0] < step <= own[-1])
            for rank, own in zip(self.ranks, self.own, strict=True)
        ]


def evaluated_s(rank: RankEvents, head: RankEvents) -> dict[int, float]:
    """Return by step the seconds between it and the step before in which a rank was in its phase `eval`; only where `head`, which is rank
    0, told a result.

    What a rank calls an evaluation is never longer than what its steps, with the seconds that it tells of them, leave between them.
    """
    found: dict[int, float] = {}
    for number, begin_ns, end_ns in rank.pauses:
        before, after = rank.steps.get(number - 1), rank.steps.get(number)
        if number not in head.evaluated or before is None or after is None or before.monotonic_ns is None or after.monotonic_ns is None:
            continue
        between_s = (after.monotonic_ns - before.monotonic_ns) / 1e9 - after.seconds
        found[number] = max(0.0, min(found.get(number, 0.0) + (end_ns - begin_ns) / 1e9, between_s))
    return found


def window_of(events: Mapping[int, RankEvents], num_ranks: int, mode: str) -> Window | None:
    """Return the measured window, or None unless all ranks have measured steps in common."""
    ranks = [events[rank] for rank in range(num_ranks) if rank in events]
    common = set(ranks[0].steps).intersection(*(rank.steps for rank in ranks[1:])) if len(ranks) == num_ranks > 0 else set()
    measured = sorted(step for step in common if all(rank.steps[step].measured for rank in ranks))
    if not measured:
        return None
    own = [own_steps(rank.steps) if mode == "infer" else measured for rank in ranks]
    return Window(ranks=ranks, measured=measured, own=own)


def _tokens(window: Window, walls_s: Sequence[float], mode: str) -> tuple[int | None, float | None]:
    reported = [[rank.steps[step].tokens for step in own] for rank, own in zip(window.ranks, window.own, strict=True)]
    counts = [sum(tokens for tokens in rank if tokens is not None) for rank in reported]
    if any(tokens is None for rank in reported for tokens in rank):
        return None, None
    wall_s = _together(counts, walls_s, mode)
    return sum(counts), sum(counts) / wall_s if wall_s else None


def _tokens_by_length(window: Window) -> tuple[tuple[int, int], ...] | None:
    """Return pairs of a sequence length and the tokens of all ranks in sequences of it, the shortest first.

    None unless every rank reports both for each of its steps, and for more than MAX_LENGTHS lengths.
    """
    found: dict[int, int] = {}
    for step in (rank.steps[number] for rank, own in zip(window.ranks, window.own, strict=True) for number in own):
        if not step.length or step.tokens is None:
            return None
        found[step.length] = found.get(step.length, 0) + step.tokens
    return tuple(sorted(found.items())) if len(found) <= MAX_LENGTHS else None


def own_steps(steps: Mapping[int, Step]) -> list[int]:
    """Return the numbers of the steps that a rank calls measured, in order."""
    return sorted(number for number, step in steps.items() if step.measured)


def own_window(rank: RankEvents, window: Sequence[int], evaluation_s: float) -> float:
    """Return the seconds from the start of a rank's first step of `window` to the end of its last one, by its own clock.

    Two sources give it: run_stop (if all measured steps of the rank are in `window`, and without evaluations) and the times of its lines
    less `evaluation_s`, the seconds of evaluations between these steps. The longer one counts, since with a GPU lines may come some steps
    late. The sum of the steps counts if that is longer, or if no source gives a value. For steps that were read from output, only the times
    of the lines count: the seconds in a line may be the latency of steps that overlap.
    """
    longest, sum_s = _wall(rank, window, evaluation_s), _sum_s(rank.steps, window)
    return longest if longest >= sum_s * (1 - CLOCK_RATIO) or (longest and _is_log(rank)) else sum_s


def reports_wall_time(rank: RankEvents, window: Sequence[int]) -> bool:
    """Return whether the wall time of the window is known: without it, what lies between its steps is in no rate."""
    return _wall(rank, window) > 0


def _wall(rank: RankEvents, window: Sequence[int], evaluation_s: float = 0.0) -> float:
    whole = not rank.beyond and len(window) == sum(step.measured for step in rank.steps.values())
    told = (rank.stop.window_wall_s or 0.0) if whole and rank.stop is not None else 0.0
    return max(told, _by_lines(rank, window) - evaluation_s)


def _is_log(rank: RankEvents) -> bool:
    return rank.head.steps_source == "log"


def goes_back(steps: Mapping[int, Step], window: Sequence[int]) -> bool:
    """Return True if a step of `window` ended before an earlier one did, by the rank's own clock: its lines then tell no wall time."""
    ends_ns = [end_ns for step in window if (end_ns := steps[step].monotonic_ns) is not None]
    return any(after < before for before, after in pairwise(ends_ns))


def moments(steps: Mapping[int, Step], window: Sequence[int]) -> tuple[float, float] | None:
    """Return the start and the end of a rank's `window` in seconds of its own monotonic clock, or None where its lines do not tell."""
    first, last = (steps[window[0]], steps[window[-1]]) if window else (None, None)
    if first is None or last is None or first.monotonic_ns is None or last.monotonic_ns is None or goes_back(steps, window):
        return None
    return first.monotonic_ns / 1e9 - first.seconds, last.monotonic_ns / 1e9


def _by_lines(rank: RankEvents, window: Sequence[int]) -> float:
    """Return the window in seconds, 0 if the times of the lines do not give it. Steps read from output begin no earlier than the line
    before them."""
    steps = rank.steps
    first, last = steps[window[0]], steps[window[-1]]
    if first.monotonic_ns is None or last.monotonic_ns is None or goes_back(steps, window):
        return 0.0
    before = steps.get(window[0] - 1) if _is_log(rank) else None
    first_s = (
        first.seconds
        if before is None or before.monotonic_ns is None
        else min(first.seconds, (first.monotonic_ns - before.monotonic_ns) / 1e9)
    )
    return (last.monotonic_ns - first.monotonic_ns) / 1e9 + first_s


def _sum_s(steps: Mapping[int, Step], window: Sequence[int]) -> float:
    return math.fsum(steps[step].seconds for step in window)


def _together(samples: Sequence[float], seconds: Sequence[float], mode: str) -> float:
    """Return the time in which all ranks did their samples: the longest, or in inference what the sum of their rates needs."""
    if mode != "infer":
        return max(seconds)
    rate = math.fsum(count / took for count, took in zip(samples, seconds, strict=True) if took > 0)
    return math.fsum(samples) / rate if rate else 0.0


def _parts(window: Window, slowest: Sequence[float], work: Work, alone_s: float) -> dict[UnevenCause, float]:
    """Return by cause the seconds that the steps last longer than if each were as long as the median one; negative where they are
    shorter. `alone_s`: the time of all steps without what lies between them.
    """
    waits = [max(rank.steps[step].input_s or 0.0 for rank in window.ranks) for step in window.measured]
    ahead = [0.0 if own is None else max(0.0, max(own) - median(own) - wait) for own, wait in zip(work, waits, strict=True)]
    parts: dict[UnevenCause, float] = {"input": _beyond_median(waits), "stragglers": _beyond_median(ahead)}
    parts["stalls"] = _beyond_median(slowest) - parts["input"] - parts["stragglers"]
    parts["stragglers"] += alone_s - math.fsum(slowest)  # ranks that are slow in turn: no window is as long as the slowest of each step
    return parts


def _beyond_median(values: Sequence[float]) -> float:
    return math.fsum(values) - len(values) * median(values)


# Drift: whether the steps of a window get slower or faster. A straight line is compared with other slow changes of the same steps.
#
# Steps are no independent numbers: one that was slow is often followed by another slow one, and a line through them then tilts by chance
# much further than the usual standard error says. So it is judged by slow changes that no drift makes: the line is the polynomial of
# degree 1, and those of degree 2 to 9, orthogonal to it, show how large such things are by chance. Their mean square is the line's own
# variance, with 8 degrees of freedom (Student's t). Before, the dependence of neighbours is taken out with a correlation that is rather
# too large than too small, since a too small one makes false alarms. All of it is done on the means of at most 50 blocks of steps: what
# changes from one step to the next only hides how long a slow phase lasts.
#
# Runs of a cell are put together degree by degree (workflow/report/cells.py): what the same pattern of input does in every run then stays
# in the line and in the others alike.
#
# Batches that were read ahead before the window, and steps that the device has not computed yet, make its first steps short, and the rate
# of the window higher than that of all that follows (`early`).
#
# benchmarks/marks.py simulates how often both tests are wrong, and what they find; how-numbers-are-made.md has the figures.


MIN_STEPS: Final = 100
"""Fewer do not tell a drift from steps that depend on each other."""
MIN_EARLY: Final = 20
OTHERS: Final = 8
MAX_BLOCKS: Final = 50
MAX_CORRELATION: Final = 0.99
CAUTION: Final = 1.5
"""Standard errors that are added to the correlation of neighbours."""


def drift(seconds: Sequence[float]) -> Drift | None:
    """Compute the `drift` of a record, or None for fewer than MIN_STEPS steps, or where no time passed.

    `change_ratio`: how far a line through the steps' seconds rises from start to end of the window, in parts of their mean; `others_ratio`:
    the same for OTHERS other slow changes; `stderr_ratio`: their root mean square, which is the standard error of the line; `steps`: how
    many were tested.
    """
    size = math.ceil(len(seconds) / MAX_BLOCKS)
    mean = math.fsum(seconds) / len(seconds) if seconds else 0.0
    if len(seconds) < MIN_STEPS or not mean:
        return None
    places = range(0, len(seconds) - size + 1, size)
    blocks = [math.fsum(seconds[place : place + size]) / size / mean - 1 for place in places]
    rho = _correlation(blocks)
    fresh = [after - rho * before for before, after in zip(blocks, blocks[1:], strict=False)]
    width = 2 * len(blocks) / len(fresh) / (1 - rho) / math.sqrt(math.fsum(x * x for x in _grid(len(fresh))))
    _, line, *others = tuple(width * found for found in _projections(fresh, OTHERS + 2))
    error = math.sqrt(math.fsum(other * other for other in others) / OTHERS)
    return Drift(change_ratio=line, stderr_ratio=error, others_ratio=tuple(others), steps=len(seconds))


def early(seconds: Sequence[float]) -> tuple[float, float] | None:
    """Return the rate of the window over that of its last half; and the mean of its first steps, a twentieth, over that of the shortest as
    many in a row of the last half. Return None for fewer than MIN_EARLY steps, or where no time passed.

    The last step belongs to neither half: where the device is waited for at the window's end, it lasts until all steps in flight are
    computed.
    """
    last = seconds[len(seconds) - len(seconds) // 2 : -1]
    size = max(1, len(seconds) // 20)
    if len(seconds) < MIN_EARLY or not math.fsum(last):
        return None
    shortest = min(math.fsum(last[place : place + size]) for place in range(0, len(last) - size + 1, size))
    ratio = math.fsum(last) / len(last) * len(seconds) / math.fsum(seconds)
    return (ratio, math.fsum(seconds[:size]) / shortest) if shortest else None


def _correlation(values: Sequence[float]) -> float:
    """Estimate the correlation of neighbours without the line through them, corrected for the bias of the estimate and rather too large."""
    n, grid = len(values), _grid(len(values))
    mean = math.fsum(values) / n
    slope = math.fsum(x * value for x, value in zip(grid, values, strict=True)) / math.fsum(x * x for x in grid)
    rest = [value - mean - slope * x for x, value in zip(grid, values, strict=True)]
    square = math.fsum(value * value for value in rest)
    found = math.fsum(before * after for before, after in zip(rest, rest[1:], strict=False)) / square if square else 0.0
    rho = min(max((found * n + 2) / (n - 4), 0.0), MAX_CORRELATION)  # it comes out too small, by about (2 + 4 rho) / n
    return min(rho + CAUTION * math.sqrt((1 - rho * rho) / n), MAX_CORRELATION)


def _projections(values: Sequence[float], count: int) -> Iterator[float]:
    """Yield the parts of `values` along the first `count` polynomials that are orthonormal on an even grid (three-term recurrence)."""
    grid = _grid(len(values))
    before, now, norm_before = [0.0] * len(grid), [1.0] * len(grid), 1.0
    for _ in range(count):
        norm = math.fsum(value * value for value in now)
        yield math.fsum(value * own for value, own in zip(values, now, strict=True)) / math.sqrt(norm)
        before, now = now, [x * own - norm / norm_before * last for x, own, last in zip(grid, now, before, strict=True)]
        norm_before = norm


def _grid(count: int) -> list[float]:
    return [(2 * place + 1) / count - 1 for place in range(count)]


# Losses: the curve, and those of the first steps.


FIRST_STEPS: Final = 5
"""So many are kept whatever the length of the run: two programs that train the same network agree in them to the rounding of sums."""


def first_losses(record: RunRecord) -> dict[int, float]:
    """Return step -> loss of the first FIRST_STEPS steps; of a record of an earlier version those that its curve has."""
    training = record.training
    pairs = (training.losses if training.first_losses is None else training.first_losses) if training is not None else None
    return {step: loss for step, loss in pairs or () if step < FIRST_STEPS}


def first_of(flat: Sequence[float] | None) -> dict[int, float] | None:
    """Return the same of a row of records.parquet, where pairs lie one after the other; None where there is none."""
    return {int(step): loss for step, loss in zip(flat[::2], flat[1::2], strict=True) if step < FIRST_STEPS} if flat else None


# Replicas: whether the ranks trained one network together, by the checksums of their parameters and by when they ended.


MAX_NAMED: Final = 8
NOT_COMPARED: Final = (
    "nobody has compared the parameters of the ranks at the end: whether they trained one network together is not known; "
    "slipway_events.start(model=...) makes the checksum for that"
)
LATE_RATIO: Final = 0.02
LATE_S: Final = 1.0
"""A rank that ends more than LATE_RATIO of the window plus LATE_S after rank 0 has not done its steps together with it: ranks that wait for
each other end within the time that a process takes to start and to exit."""


def replicas_of(events: Mapping[int, RankEvents]) -> Replicas | None:
    """Compare the checksums of the ranks' parameters. None where no rank reported one."""
    told = {rank: found for rank, entry in sorted(events.items()) if entry.stop is not None and (found := entry.stop.checksum) is not None}
    if not told:
        return None
    ((checksum, _),) = Counter(told.values()).most_common(1)  # of a tie the first one
    return Replicas(checksum=checksum, ranks=len(told), apart=tuple(rank for rank, found in told.items() if found != checksum))


def not_compared(events: Mapping[int, RankEvents], found: Replicas | None, num_processes: int) -> list[str]:
    """Return a sentence where several ranks ended, and not all tell a checksum."""
    ended = num_processes > 1 and sum(entry.stop is not None for entry in events.values()) == num_processes
    return [NOT_COMPARED] if ended and (found is None or found.ranks < num_processes) else []


def late_ranks(events: Mapping[int, RankEvents], read: Mapping[int, RankEvents], window_s: float | None) -> dict[int, float]:
    """Return the ranks whose output nobody read and that ended later than rank 0, and by how many seconds. `window_s`: of rank 0.

    Ranks of one host are compared by its clock, those of several by how long ago the first rank of each host was started.
    """
    ended = _ended_s(events)
    if window_s is None or 0 not in ended:
        return {}
    limit_s = ended[0] + LATE_RATIO * window_s + LATE_S
    return {rank: seconds - ended[0] for rank, seconds in ended.items() if rank not in read and seconds > limit_s}


def _ended_s(events: Mapping[int, RankEvents]) -> dict[int, float]:
    """Return when each rank ended, in seconds after the start of the first one on its host."""
    moments: dict[int, tuple[str, int, int]] = {}
    for rank, entry in sorted(events.items()):
        began_ns, ended_ns = entry.head.monotonic_ns, None if entry.stop is None else entry.stop.monotonic_ns
        if began_ns is not None and ended_ns is not None:
            moments[rank] = (entry.head.hostname or "", began_ns, ended_ns)
    first_ns: dict[str, int] = {}
    for host, began_ns, _ in moments.values():
        first_ns[host] = min(began_ns, first_ns.get(host, began_ns))
    return {rank: (ended_ns - first_ns[host]) / 1e9 for rank, (host, _, ended_ns) in moments.items()}


def late_warnings(late: Mapping[int, float]) -> list[str]:
    """Return a sentence where ranks ended late."""
    if not late:
        return []
    who = f"{ranks_text(list(late))} ended {max(late.values()):.3g} s later than rank 0, whose output alone was read for steps"
    return [f"{who}: the ranks did not wait for each other, and the rate is that of rank 0 alone"]


def replica_warnings(found: Replicas | None) -> list[str]:
    """Return a sentence where ranks ended with different parameters."""
    if found is None or not found.apart:
        return []
    alike = found.ranks - len(found.apart)
    others = f"the {alike} others" if alike > 1 else "the other one" if found.ranks == 2 else "one other"
    return [f"{ranks_text(found.apart)} ended with other parameters than {others}: the replicas of the network have come apart"]


def ranks_text(ranks: Sequence[int]) -> str:
    """Format ranks for a message (`rank 1`, `ranks 1, 3`); of many only the first ones."""
    named = ", ".join(str(rank) for rank in ranks[:MAX_NAMED])
    return f"rank{'s' if len(ranks) > 1 else ''} {named}{' ...' if len(ranks) > MAX_NAMED else ''}"


# The numbers of the record, by rules in closed form that can be checked by hand.
#
# The rate is samples, or tokens, of the measured window over its wall time (rate.py). The time of a step is the slowest rank's; its median
# stands beside the rate, and is none. A number that cannot be had is None.


MAX_LOSSES = 200
MAX_NUMBER = 1e15
"""A rate or a ratio beyond it is that of a clock which did not run: no number."""


def performance(
    events: Mapping[int, RankEvents], world_size: int, global_batch: int, mode: str = "train", processes: int | None = None
) -> Performance | None:
    """Compute the `performance` of a record.

    None unless every rank has measured steps in common, and most of them took time. `processes`: how many ranks the run has, where not
    all of them report steps.
    """
    window = window_of(events, world_size, mode)
    if window is None:
        return None
    ranks, measured = [rank.steps for rank in window.ranks], window.measured
    slowest = [max(steps[step].seconds for steps in ranks) for step in measured]
    middle = median(slowest)
    if not middle:
        return None
    walls_s, samples = window.walls_s(), window.samples(global_batch)
    reported = round(math.fsum(samples))
    total = min(reported, window.requested_samples(global_batch))  # a miscount never makes a run faster
    wall_s = _together(samples, walls_s, mode)
    rate = total / wall_s if wall_s else None
    scale = len(measured) * len(ranks) / sum(map(len, window.own))  # 1, but for ranks that do not wait and measure different steps
    ratio = rate * middle * len(measured) / (total * scale) if rate else None
    work = [own_work(ranks, step, mode) for step in measured]
    cause: UnevenCause | None = None
    if ratio is not None and abs(ratio - 1) > UNEVEN:
        alone_s = scale * _together(samples, [_sum_s(steps, own) for steps, own in zip(ranks, window.own, strict=True)], mode)
        parts: dict[UnevenCause, float] = {**_parts(window, slowest, work, alone_s), "gaps": scale * wall_s - alone_s}
        cause = max(parts.items(), key=lambda part: part[1] if ratio < 1 else -part[1])[0]
    slow = straggler(work)
    told = [without_exchange(ranks[0])] if (processes or world_size) == 1 else ranks
    tokens, tokens_per_s = _tokens(window, walls_s, mode)
    rate, tokens_per_s = _possible(rate), _possible(tokens_per_s)
    together = [ranks[0][step].steps or 0 for step in measured]
    means = [seconds for seconds, count in zip(slowest, together, strict=True) if count] or slowest  # one of each line
    begun = early(means) or (None, None)
    inputs = [seconds for steps in ranks for step in measured if (seconds := steps[step].input_s) is not None]
    return Performance(
        num_measured_steps=len(measured),
        num_warmup_steps=sum(1 for step in ranks[0] if step < measured[0] and all(step in steps for steps in ranks)),
        samples=total,
        samples_reported=reported,
        assumed=_assumed(window),
        step_s=summarise(means),
        steps_together=max(1, *together),
        input_wait_s_mean=math.fsum(inputs) / (len(ranks) * len(measured)) if inputs else None,
        first_step_s=max(steps[0].seconds for steps in ranks) if all(0 in steps for steps in ranks) else None,
        window_s=max(walls_s),
        evaluation_s=max(window.evaluations_s),
        window_steps_ratio=_possible(_window_steps([rank.stop for rank in window.ranks])),
        samples_per_s=rate,
        samples_per_s_per_gpu=None if rate is None else rate / (processes or world_size),
        tokens=tokens,
        tokens_by_length=_tokens_by_length(window),
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=None if tokens_per_s is None else tokens_per_s / (processes or world_size),
        rate_to_median_ratio=_possible(ratio),
        uneven_cause=cause,
        rank_skew_p95_ratio=_possible(skew(work)),
        straggler_rank=slow,
        drift_ratio=_possible(_halves(means)),
        drift=drift(means),
        last_half_ratio=_possible(begun[0]),
        first_steps_ratio=_possible(begun[1]),
        parts=parts_of(told, measured),
        what_if=what_if(told, measured, mode, slow),
    )


def _assumed(window: Window) -> tuple[Literal["samples", "steps"], ...]:
    """Return what of the rate is a number of the study that no program reported: `samples` of a step, where any rank leaves them out, and
    `steps` of a line of output that does not name its step."""
    samples = any(rank.steps[step].samples is None for rank, own in zip(window.ranks, window.own, strict=True) for step in own)
    lines = any(rank.head.counts_lines for rank in window.ranks)
    assumed: list[tuple[Literal["samples", "steps"], bool]] = [("samples", samples), ("steps", lines)]
    return tuple(name for name, is_assumed in assumed if is_assumed)


def reported_windows(window: Window) -> list[ReportedWindow]:
    """Return the measured window of each rank."""
    found = enumerate(zip(window.own, window.walls_s(), window.evaluations_s, strict=True))
    return [ReportedWindow(rank, own[0], own[-1], wall_s, evaluation_s) for rank, (own, wall_s, evaluation_s) in found]


def _possible(value: float | None) -> float | None:
    return None if value is None or value > MAX_NUMBER else value


def _window_steps(stops: Sequence[RunStop | None]) -> float | None:
    """Sum of a rank's own steps / wall time of its window, of the rank where that is furthest from 1; None unless every rank told both.

    Within one rank only: the slowest rank changes from step to step, so the steps of all, each the slowest's, last longer than any window.
    """
    ratios = []
    for stop in stops:
        if stop is None or stop.window_steps_s is None or not stop.window_wall_s:
            return None
        ratios.append(stop.window_steps_s / stop.window_wall_s)
    return max(ratios, key=lambda ratio: abs(ratio - 1), default=None)


def _halves(seconds: Sequence[float]) -> float | None:
    half = len(seconds) // 2
    first = median(seconds[:half]) if half else 0.0
    return median(seconds[half:]) / first if first else None


def training(
    events: Mapping[int, RankEvents], world_size: int, telling: Mapping[int, RankEvents] | None = None, late: Collection[int] = ()
) -> Training | None:
    """Compute the `training` of a record, or None if rank 0 has not started.

    Losses are means over the ranks that wrote the step. `telling`: the ranks that are expected to report steps, where these are not
    all; `late`: the result of `late_ranks`.
    """
    head = events.get(0)
    if head is None or head.start is None:
        return None
    losses = mean_losses(events, world_size) if telling is None else mean_losses(telling, len(telling))
    stops = [rank.stop for rank in events.values() if rank.stop is not None]
    stop = head.stop or RunStop()
    between_s = evaluated_s(head, head)
    return Training(
        final_loss=losses[-1][1] if losses else None,
        first_loss=losses[0][1] if losses else None,
        first_losses=tuple(entry for entry in losses if entry[0] < FIRST_STEPS),
        losses=thinned(losses),
        eval=Evaluation(**{name: getattr(head.evals[-1], name) for name in Evaluation.__struct_fields__}) if head.evals else None,
        evaluations=_evaluations(head, between_s),
        trained_s=_trained_s(head, head.next_step, between_s),
        parameters=head.start.parameters,
        parameter_norm=stop.norm,
        replicas=replicas_of(events),
        late_ranks=tuple(late),
        flop_per_unit=head.start.flop_per_unit or None,
        precision=head.start.precision,
        train_s=stop.train_s,
        eval_s=stop.eval_s,
        peak_memory_bytes=max((peak for stop in stops if (peak := stop.max_memory_allocated_bytes)), default=None),
    )


def _evaluations(head: RankEvents, between_s: Mapping[int, float]) -> tuple[EvaluationAt, ...]:
    """Return the evaluations of which rank 0 told the step, in their order. Of one that was told again the last counts."""
    found = {
        (event.split, event.step): EvaluationAt(
            split=event.split,
            step=event.step,
            epoch=event.epoch,
            loss=event.loss,
            accuracy=event.accuracy,
            seconds=event.eval_s,
            training_s=_trained_s(head, event.step, between_s),
        )
        for event in head.evals
        if event.step is not None
    }
    return tuple(found.values())


def _trained_s(rank: RankEvents, end: int, between_s: Mapping[int, float]) -> float | None:
    """Return the seconds from the start of a rank's first step to the end of the one before `end`, without the evaluations `between_s`."""
    begin = next(iter(rank.steps), end)
    if begin >= end:
        return 0.0
    first, last = rank.steps[begin], rank.steps.get(end - 1)
    if last is None or first.monotonic_ns is None or last.monotonic_ns is None:
        return None
    whole_s = (last.monotonic_ns - first.monotonic_ns) / 1e9 + first.seconds
    return max(0.0, whole_s - math.fsum(lasted for step, lasted in between_s.items() if step < end))


def mean_losses(events: Mapping[int, RankEvents], world_size: int) -> list[tuple[int, float]]:
    """Return pairs of step and mean loss over the ranks, for the steps that every rank of `world_size` has with a loss."""
    ranks = [events[rank].steps for rank in range(world_size) if rank in events]
    if not ranks or len(ranks) < world_size:
        return []
    found = []
    for step in sorted(set(ranks[0]).intersection(*ranks[1:])):
        values = [loss for steps in ranks if (loss := steps[step].loss) is not None]
        if len(values) == world_size:
            found.append((step, math.fsum(values) / world_size))
    return found


def thinned(losses: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Select at most MAX_LOSSES entries, evenly spread, the first and the last among them."""
    if len(losses) <= MAX_LOSSES:
        return tuple(losses)
    places = sorted({round(index * (len(losses) - 1) / (MAX_LOSSES - 1)) for index in range(MAX_LOSSES)})
    return tuple(losses[place] for place in places)
