"""How a dataset or a single file is to be staged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from data_prep.limits import RECHECK_S
from data_prep.staging.copy import CopyOptions
from data_prep.staging.together import GroupStaging

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    """How patient, and how to copy.

    `stall_s`: a stager of the same dataset that does not move for so long is read around; `patience_s`: how long a file that storage
    does not show yet is looked for; `check_s`: how long a dataset that is here already may be hashed, None: all of it;
    `group_staging`: the nodes that stage the same dataset at the same time, None for this one alone; the caller serves them afterwards;
    `group`: see open_cache; `single`: the source is one file, beside which the hashes of its chunks lie;
    `num_bytes`: how long that is, where it is known.
    """

    stall_s: float = 60.0
    patience_s: float = 60.0
    check_s: float | None = RECHECK_S
    group: bool = False
    single: bool = False
    num_bytes: int | None = None
    group_staging: GroupStaging | None = None
    copy: CopyOptions = field(default_factory=CopyOptions)
