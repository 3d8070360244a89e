"""What the laptop keeps: per host the settings, and per submission a token, until it is known what became of it."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final
from urllib.parse import quote

from base.errors import ConfigError
from base.jsonfile import canonical_json, publish_json, read_json
from base.names import choices
from base.publish import create_exclusive, publish
from cluster.installation import NAME
from cluster.ssh import TRANSPORTS

TOKEN_DIGITS: Final = 8


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of a host. `slipway`: the program there, as an absolute path; `site`: of the cluster, None: its default; `transport`: None: ssh."""

    slipway: str
    site: str | None = None
    transport: str | None = None


def settings_file(host: str) -> Path:
    """Where they are."""
    from platformdirs import user_config_path

    return user_config_path(NAME) / "remote" / f"{quote(host, safe='@')}.json"


def read_settings(host: str) -> Settings | None:
    """None where there are none. Raises ConfigError for a file that is wrong."""
    path = settings_file(host)
    if not path.exists():
        return None
    found = read_json(path, ConfigError)
    known = [field.name for field in fields(Settings)]
    if not isinstance(found, dict) or not isinstance(found.get("slipway"), str):
        raise ConfigError(
            f"{path}: slipway: the absolute path of the program on {host} is missing; `slipway remote {host} setup` writes it"
        )
    for key, value in found.items():
        if key not in known:
            raise ConfigError(f"{path}: {key!r} is not known; {choices(key, known)}")
        if not isinstance(value, str | None) or (key == "transport" and value not in (None, *TRANSPORTS)):
            raise ConfigError(f"{path}: {key}: found {value!r}; valid: text, and of transport {' or '.join(TRANSPORTS)}")
    return Settings(**found)


def write_settings(host: str, settings: Settings) -> Path:
    """The file."""
    path = settings_file(host)
    path.parent.mkdir(parents=True, exist_ok=True)
    publish_json(path, asdict(settings))
    return path


def source_of(study: Path, name: str) -> str:
    """What stands on the cluster for this file of this laptop: NAME-<12 hex digits>."""
    content = f"{_laptop()}\0{os.path.realpath(study)}"
    return f"{name}-{hashlib.sha256(content.encode(errors='surrogateescape')).hexdigest()[:12]}"


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One `submit`, until it is known what became of it: whoever asks for the same has the same token, which the cluster takes once."""

    file: Path
    token: str

    def close(self) -> None:
        """It is known."""
        self.file.unlink(missing_ok=True)


def submission(*what: object) -> Submission:
    """The open one of `what`, else a new one, which is on the disk before anything is asked of the cluster."""
    file = _state() / "submissions" / hashlib.sha256(canonical_json(list(what))).hexdigest()[:24]
    file.parent.mkdir(parents=True, exist_ok=True)
    create_exclusive(file, secrets.token_hex(TOKEN_DIGITS // 2).encode())
    token = file.read_text()
    if len(token) != TOKEN_DIGITS or set(token) - set("0123456789abcdef"):  # torn by a power cut, before anything was asked
        token = secrets.token_hex(TOKEN_DIGITS // 2)
        publish(file, token.encode())
    return Submission(file=file, token=token)


def without_wait(words: Sequence[str]) -> list[str]:
    """What says which submission it is: to wait for it is no other one."""
    return [word for word in words if word != "--wait"]


def _laptop() -> str:
    """Made once."""
    file = _state() / "laptop"
    file.parent.mkdir(parents=True, exist_ok=True)
    create_exclusive(file, secrets.token_hex(8).encode())
    return file.read_text()


def _state() -> Path:
    from platformdirs import user_state_path

    return user_state_path(NAME) / "remote"
