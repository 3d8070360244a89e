"""Test whether a rate differs from another one, and whether it is not lower by more than a margin. Pure.

The unit is the run. Ratio and interval are those of Welch on the logarithms (`workflow.report.cells.ratio`). A difference is claimed where
|effect| >= max(1 %, noise) and p < 0.05, p of that same t test, corrected by Holm for all cells that can be tested. Noise is the standard
deviation of one run. Where an exact test of so many runs could not reach p < 0.05, such as of 3 against 3 (least p 0.1), nothing is
claimed: so few runs say too little of their own distribution.

Not slower than a margin is a test of non-inferiority: it holds where the lower one-sided 95 % bound of the ratio is above 1 - margin. For
several cells to hold each has to, which needs no correction; that any is slower is tested at 5 % over the number of cells.
benchmarks/compare.py simulates false alarms, power and coverage.
"""

import math
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from workflow.report.cells import LEVEL, MIN_RUNS, Estimate, LogSample, one_sided_quantile, ratio

ALPHA: Final = 0.05
POWER: Final = 0.8
MIN_EFFECT: Final = 0.01
MAX_RUNS: Final = 1000
MIN_ERROR: Final = 1e-5
Verdict = Literal["slower", "faster", "no difference claimed", "not known"]
Answer = Literal["held", "not held", "cannot be told"]


class Difference(Struct, frozen=True, kw_only=True):
    """How the rate of B differs from that of A in one cell.

    `ratio`: B over A; None where one was not measured. `p`, `p_holm`: of the test, alone and among all cells. `found`: the smallest
    difference, as a part of A's rate, that these runs would have found with the probability POWER.
    """

    verdict: Verdict
    ratio: Estimate | None = None
    p: float | None = None
    p_holm: float | None = None
    found: float | None = None
    reason: str = ""


class NotSlower(Struct, frozen=True, kw_only=True):
    """The answer to whether B is slower than A by more than `margin`, in one cell or in all.

    `power`: how likely "held" was with these runs if B were as fast as A. `runs`: how many on each side would give it the probability
    POWER; None: more than MAX_RUNS.
    """

    answer: Answer
    margin: float
    bound: float | None = None
    power: float | None = None
    runs: int | None = None


def differences(pairs: Sequence[tuple[LogSample | None, LogSample | None]], reasons: Sequence[str]) -> list[Difference]:
    """Return how the second of each pair differs from the first. `reasons`: why a pair cannot be compared, "" where it can."""
    found = [_untested(*pair, reason) for pair, reason in zip(pairs, reasons, strict=True)]
    tested = [
        (place, one.ratio, noise(above, below))
        for place, (one, (above, below)) in enumerate(zip(found, pairs, strict=True))
        if one.ratio is not None and above is not None and below is not None and not one.reason
    ]
    values = [_p(quotient) for _, quotient, _ in tested]
    for (place, quotient, spread), p, p_holm in zip(tested, values, holm(values), strict=True):
        found[place] = _tested(quotient, spread, p, p_holm, len(tested))
    return found


def holm(values: Sequence[float]) -> list[float]:
    """Return the p values corrected for their number by Holm's step-down procedure, in their order."""
    corrected, worst = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        worst = max(worst, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = worst
    return corrected


def least_p(n: int, m: int) -> float:
    """Return the least two-sided p of an exact test of n against m runs (Mann-Whitney's)."""
    return min(1.0, 2 / math.comb(n + m, n))


def _untested(above: LogSample | None, below: LogSample | None, reason: str) -> Difference:
    """Return the ratio without a verdict, with the reason where so few runs claim nothing."""
    if reason or above is None or below is None:
        return Difference(verdict="not known", reason=reason or "not measured")
    found, least = ratio(replace(below, by_block=()), above), least_p(above.n, below.n)
    if found.n < MIN_RUNS:
        reason = f"n={found.n}, no interval: it needs {MIN_RUNS} runs"
    elif least >= ALPHA:
        reason = f"{above.n} against {below.n} runs cannot reach p < {ALPHA:g} in an exact test (least {least:.2g}); 4 each can"
    return Difference(verdict="not known", ratio=found, reason=reason)


def _p(found: Estimate) -> float:
    """Return the two-sided p of the t test on the logarithm of the ratio."""
    from scipy.special import stdtr

    distance = abs(math.log(found.value))
    if not found.error:
        return 1.0 if distance == 0 else 0.0
    return float(2 * stdtr(found.freedom, -distance / found.error))


def _tested(found: Estimate, spread: float, p: float, p_holm: float, tests: int) -> Difference:
    floor, error = max(MIN_EFFECT, spread), found.error or 0.0
    verdict: Verdict = "no difference claimed"
    if p_holm < ALPHA and abs(found.value - 1) >= floor:
        verdict = "slower" if found.value < 1 else "faster"
    by_test = noncentrality(found.freedom, 1 - ALPHA / 2 / tests) * error
    by_floor = -math.log1p(-min(floor, 0.99)) + one_sided_quantile(found.freedom, POWER) * error
    return Difference(verdict=verdict, ratio=found, p=p, p_holm=p_holm, found=-math.expm1(-max(by_test, by_floor)))


def noise(above: LogSample, below: LogSample) -> float:
    """Return the standard deviation of the logarithm of one run's rate, pooled over both sides."""
    freedom = above.n + below.n - 2
    return math.sqrt(((above.n - 1) * above.variance + (below.n - 1) * below.variance) / freedom)


def noncentrality(freedom: float, level: float) -> float:
    """Return how many standard errors a true effect must have to be beyond the `level` quantile of t with the probability POWER."""
    from scipy.special import nctdtrinc

    if math.isinf(freedom):
        return 0.0
    return float(nctdtrinc(freedom, 1 - POWER, one_sided_quantile(freedom, level)))


def not_slower(found: Estimate | None, margin: float, cells: int = 1) -> NotSlower:
    """Test whether the rate of B, `found` of A's, is not lower than A's by more than `margin`; `cells` are tested in all."""
    if found is None or found.error is None:
        return NotSlower(answer="cannot be told", margin=margin)
    bound = found.least() or 0.0
    most = found.value**2 / (found.least(1 - ALPHA / cells) or math.inf)
    answer: Answer = "held" if bound > 1 - margin else "not held" if most < 1 - margin else "cannot be told"
    return NotSlower(
        answer=answer,
        margin=margin,
        bound=bound,
        power=power_to_hold(found.error, found.freedom, margin),
        runs=_runs_to_hold(found, margin),
    )


def power_to_hold(error: float, freedom: float, margin: float) -> float:
    """Return how likely the test holds where there is no difference, from the standard error of the logarithm of the ratio."""
    from scipy.special import nctdtr

    if error < MIN_ERROR * margin:  # scipy's function has no value there
        return 1.0
    return float(1 - nctdtr(freedom, -math.log1p(-margin) / error, one_sided_quantile(freedom, LEVEL)))


def _runs_to_hold(found: Estimate, margin: float) -> int | None:
    """Return the runs on each side that give the test POWER, if they differ as much as these."""
    of_one = (found.error or 0.0) * math.sqrt(found.n)
    for n in range(MIN_RUNS, MAX_RUNS + 1):
        if power_to_hold(of_one / math.sqrt(n), 2 * n - 2, margin) >= POWER:
            return n
    return None


def together(found: Sequence[NotSlower], margin: float) -> NotSlower:
    """Combine the cells: held where all are, not held where one is not.

    The power is that to hold in all of them, as if they were independent; the runs are those of the cell that needs most.
    """
    answers = {one.answer for one in found}
    answer: Answer = "not held" if "not held" in answers else "held" if answers == {"held"} else "cannot be told"
    powers, runs = [one.power for one in found], [one.runs for one in found]
    return NotSlower(
        answer=answer,
        margin=margin,
        bound=min((one.bound for one in found if one.bound is not None), default=None),
        power=None if not powers or None in powers else math.prod(power for power in powers if power is not None),
        runs=None if not runs or None in runs else max(n for n in runs if n is not None),
    )
