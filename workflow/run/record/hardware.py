"""A node in the words in which machines are bought: processors, cores, memory, GPUs, network. What is not known is left out."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from workflow.run.record.kinds import NAME, WHOLE, NotBelieved, shown, taker

GIB: Final = 2**30
_COUNTS: Final = {name: taker(f"nodes[].machine_cores.{name}", WHOLE, required=True) for name in ("sockets", "cores", "cpus")}
_KIND: Final = taker("nodes[].network[].kind", NAME, required=True)
_RATE: Final = taker("nodes[].network[].mbit_per_s", WHOLE, required=False)
Links = tuple[tuple[str, int | None], ...]


def machine_words(cpu: str | None, cores: Any, memory_bytes: int | None, gpus: tuple[str | None, ...], network: Any) -> str:
    """`2 x Intel Xeon Gold 6230, 40 cores (80 threads), 188 GiB memory, 8 x NVIDIA H100, 2 x InfiniBand 400 Gbit/s`. `cores` and `network`
    are as a record has them. Raises NotBelieved where they are something else."""
    return _words(cpu, _cores(cores), memory_bytes, gpus, _links(network))


def _words(cpu: str | None, cores: tuple[int, ...] | None, memory_bytes: int | None, gpus: tuple[str | None, ...], links: Links) -> str:
    sockets = f"{cores[0]} \N{MULTIPLICATION SIGN} " if cores and cores[0] > 1 else ""
    parts = [sockets + cpu] if cpu else []
    if cores:
        parts.append(f"{cores[1]} {'core' if cores[1] == 1 else 'cores'}" + (f" ({cores[2]} threads)" if cores[2] != cores[1] else ""))
    if memory_bytes:
        gib = memory_bytes / GIB
        parts.append(f"{round(gib) if gib >= 1 else f'{gib:.2g}'} GiB memory")
    parts += _counted(Counter(gpu for gpu in gpus if gpu))
    parts += _counted(Counter(f"{kind} {_rate(mbit)}".rstrip() for kind, mbit in links))
    return ", ".join(parts)


def _counted(counts: Counter[str]) -> list[str]:
    return [f"{count} \N{MULTIPLICATION SIGN} {name}" if count > 1 else name for name, count in sorted(counts.items())]


def _rate(mbit: int | None) -> str:
    if mbit is None:
        return ""
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit} Mbit/s"


def _cores(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if type(value) is not dict:
        raise NotBelieved(f"nodes[].machine_cores: found {shown(value)}, expected an object")
    return tuple(take(value.get(name)) for name, take in _COUNTS.items())


def _links(value: Any) -> Links:
    if value is None:
        return ()
    if type(value) is not list or any(type(entry) is not dict for entry in value):
        raise NotBelieved(f"nodes[].network: found {shown(value)}, expected a list of objects")
    return tuple((_KIND(entry.get("kind")), _RATE(entry.get("mbit_per_s"))) for entry in value)
