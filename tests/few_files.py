"""A process that may open few files: so few connections may wait at its listeners."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

FEW: Final = 64
STRANGERS: Final = FEW // 4
"""So many may wait at a listener that was made under this limit: base.handshake.most_pending."""


@contextmanager
def few_files(soft: int = FEW) -> Iterator[None]:
    """Inside, this process may have no descriptor of the number `soft` or above."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
