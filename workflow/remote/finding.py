"""Where Slipway is on a host, whose shell may not have it on its PATH."""

from __future__ import annotations

from typing import Final

from base.command import CommandResult
from base.errors import RemoteError
from cluster.ssh import Transport, run

PLACES: Final = ("slipway", "~/.venv/bin/slipway", "~/slipway/.venv/bin/slipway", "~/Slipway/.venv/bin/slipway", "~/.local/bin/slipway")
LIMIT_S: Final = 120.0
GONE: Final = 127
SCRIPT: Final = """
for one in "$@"; do
  case $one in "~/"*) one=$HOME/${one#??};; esac
  found=$(command -v -- "$one") && exec "$found" remote-end hello "$found"
done
exit 127
"""


def find_slipway(line: Transport, given: str | None) -> CommandResult:
    """The answer of the first that is there. Raises RemoteError where none is."""
    places = PLACES if given is None else (given,)
    result = run(line, ["/bin/sh", "-c", SCRIPT, "sh", *places], limit_s=LIMIT_S)
    if result.returncode == GONE:
        raise RemoteError(
            f"no Slipway was found on {line.host}: looked for {', '.join(places)}. Install it there, on storage that all nodes see "
            f"(docs/installing.md), then name it: `slipway remote {line.host} setup --slipway PATH`"
        )
    return result
