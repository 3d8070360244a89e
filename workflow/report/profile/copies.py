"""Say of the copies between memories what they cost, and what to do about it. Pure."""

from typing import Final

from base.humanize import format_size
from workflow.report.profile.profile import Copy
from workflow.report.table import percent, significant

LARGE_SHARE: Final = 0.1
NOTICED_SHARE: Final = 0.01
MANY: Final = 20
SMALL_BYTES: Final = 64 << 10
WORDS: Final = {"Memcpy ": "", "HtoD": "host to device", "DtoH": "device to host", "DtoD": "device to device"}


def described(copy: Copy, whole_ms: float) -> str:
    """Return what copies of one kind are: how many, bytes, time, rate, share of a step of `whole_ms`."""
    kind = copy.kind
    for short, words in WORDS.items():
        kind = kind.replace(short, words)
    size = f"{copy.invocations:.3g} a step, {'bytes not reported' if copy.bytes is None else format_size(copy.bytes)}"
    rate = f", {significant(copy.gb_per_s)} GB/s" if copy.gb_per_s else ""
    share = percent(copy.ms / whole_ms if whole_ms else None)
    return f"{kind}: {size}, {significant(copy.ms)} ms{rate}, {share} of the step"


def advice_on(copy: Copy, whole_ms: float) -> str:
    """Return what to do about copies of one kind; empty where they cost nothing to speak of."""
    share = copy.ms / whole_ms if whole_ms else 0.0
    if copy.pinned is False and share > NOTICED_SHARE:
        return "from pinned memory they are several times as fast: pin_memory=True in the data loader, and .to(device, non_blocking=True)"
    if copy.invocations >= MANY and copy.bytes is not None and copy.bytes < SMALL_BYTES * copy.invocations:
        return "many small copies: join them into one, and read values back (.item(), print) only every few steps"
    if share > LARGE_SHARE and ("HtoD" in copy.kind or "DtoH" in copy.kind):
        return (
            "a large share: copy the next batch while this one is computed (a stream of its own), or send bytes and convert them on the GPU"
        )
    if share > LARGE_SHARE:
        return "a large share: look for .contiguous(), .clone() and changes of layout between layers"
    return ""
