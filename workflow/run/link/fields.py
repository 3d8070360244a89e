"""What the fields of messages between supervisor and node programs are made of: types that refuse what is out of range."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

MOST: Final = 2**63 - 1
MOST_S: Final = 10**9
"""30 years: more than any limit of ours, less than what timers of the system take."""
MOST_CPUS: Final = 1 << 16

Count = Annotated[int, Meta(ge=0, le=MOST)]
FromOne = Annotated[int, Meta(ge=1, le=MOST)]
Pid = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Seconds = Annotated[float, Meta(ge=0, le=MOST_S)]
SomeSeconds = Annotated[float, Meta(gt=0, le=MOST_S)]
SecondsLeft = Annotated[float, Meta(ge=-MOST_S, le=MOST_S)]
Rate = Annotated[float, Meta(gt=0)]
"""Bytes per second."""
Word = Annotated[str, Meta(min_length=1)]
PathText = Annotated[str, Meta(min_length=1, pattern=r"^[^\x00]*\Z")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
What = Literal["dataset", "image", "checkpoint"]
"""Which files are staged."""
GpuName = Annotated[str, Meta(min_length=1, max_length=200)]


def tag_of(name: str) -> str:
    """Pure: `MeetPeers` -> `meet_peers`, as the message is called on the wire and in sentences."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Value(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands in a message. Both sides are of one version, so that a field which one of them does not know is an error."""
