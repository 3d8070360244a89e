"""How often profiles/slurm asks for the state of jobs, and by which command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cluster.installation import PROFILES

PROFILE: Final = PROFILES / "slurm" / "profile.v9+.yaml"


@dataclass(frozen=True, kw_only=True)
class Polling:
    """Seconds between two questions, and the command; the executor plugin's own values where the profile says nothing."""

    every_s: float = 40.0
    command: str | None = None


def profile_polling() -> Polling:
    """As the profile says."""
    import yaml  # the programs of a run, which import the scheduler, do without

    try:
        value: Any = yaml.safe_load(PROFILE.read_text())
    except (OSError, yaml.YAMLError):
        return Polling()
    value = value if isinstance(value, dict) else {}
    interval, command = value.get("slurm-init-seconds-before-status-checks"), value.get("slurm-status-command")
    every_s = float(interval) if isinstance(interval, int | float) else Polling.every_s
    return Polling(every_s=every_s, command=command if isinstance(command, str) else None)
