"""What kind of end an exception is, by type or, where the framework has no type for it, by its words."""

from __future__ import annotations

OUT_OF_MEMORY_EXIT = 41
NOT_FINITE_EXIT = 42


class LossNotFinite(Exception):
    """The loss of this rank is NaN or infinite."""


def describe_failure(error: BaseException) -> tuple[str, int]:
    """(kind of the error event, exit code) for the exception that ended the program."""
    if isinstance(error, LossNotFinite):
        return "nan", NOT_FINITE_EXIT
    if _is_out_of_memory(error):
        return "oom", OUT_OF_MEMORY_EXIT
    return "error", 1


def failure_message(error: BaseException) -> str:
    """The cause in one line. From a loader process comes "Caught ... in DataLoader worker", a traceback, and then the cause."""
    text = f"{type(error).__name__}: {error}"
    if str(error).startswith("Caught ") and "Original Traceback" in text:
        text = text.rstrip().splitlines()[-1]
    return text[:4000]


def _is_out_of_memory(error: BaseException) -> bool:
    # torch.OutOfMemoryError (CUDA) is a RuntimeError and by name, so that torch need not be imported; on the CPU it is a plain
    # RuntimeError "[enforce fail at alloc_cpu.cpp:..] ... DefaultCPUAllocator: can't allocate memory: you tried to allocate ... bytes".
    # A loader process wraps its own into an exception of the same type.
    names = {cls.__name__ for cls in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "can't allocate memory" in str(error)
