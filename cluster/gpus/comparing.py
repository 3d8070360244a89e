"""Whether a container sees the GPUs it was given: pure, for the check after its start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cluster.gpus.listing import parse_instances


def listed_uuids(text: str) -> tuple[str, ...]:
    """The output of `nvidia-smi -L`: what programs can use there; of a GPU that is divided, its MIG instances."""
    return tuple(uuid for gpu, instances in parse_instances(text).items() for uuid in ([each for _, each in instances] or [gpu]))


def compare(expected: Sequence[str], seen: Sequence[str]) -> str | None:
    """None where both name the same GPUs, in whatever order; else what is missing there, and what was never granted."""
    missing = [uuid for uuid in dict.fromkeys(expected) if uuid not in seen]
    foreign = [uuid for uuid in dict.fromkeys(seen) if uuid not in expected]
    if not missing and not foreign:
        return None
    said = [f"{len(missing)} missing ({_names(missing)})"] if missing else []
    said += [f"{len(foreign)} that were not granted ({_names(foreign)})"] if foreign else []
    return f"the container sees other GPUs than it was given: of {len(set(expected))} granted it shows {len(set(seen))}: {', '.join(said)}"


def beyond(granted: Sequence[str], seen: Sequence[str]) -> str | None:
    """Where nothing hides the other GPUs of the node: None where there are none, else which, and what keeps the ranks to theirs."""
    foreign = [uuid for uuid in dict.fromkeys(seen) if uuid not in granted]
    if not foreign:
        return None
    return (
        f"the container shows {len(foreign)} GPUs beyond the {len(set(granted))} granted ({_names(foreign)}): only CUDA_VISIBLE_DEVICES, "
        "by UUID, keeps the ranks to theirs; the scheduler can constrain a job's devices (docs/containers.md)"
    )


def _names(uuids: Iterable[str]) -> str:
    return ", ".join(uuids)
