"""Keep on the laptop the settings of each host, and a token of each submission until it is known what became of it."""

import hashlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from base import errors, jsonfile, publish, typed
from cluster.installation import NAME


@dataclass(frozen=True, kw_only=True)
class Settings(typed.Closed):
    """The settings of a host. `slipway` is the program there, as an absolute path; `site` is one of the cluster, None: its default."""

    slipway: str
    site: str | None = None


def settings_file(host: str) -> Path:
    """Return the path of the settings of a host."""
    from platformdirs import user_config_path

    return user_config_path(NAME) / "remote" / f"{quote(host, safe='@')}.json"


def read_settings(host: str) -> Settings | None:
    """Read the settings of a host; None where there are none. Raises ConfigError for a file that is wrong."""
    path = settings_file(host)
    if not path.exists():
        return None
    value = jsonfile.read_json(path, errors.ConfigError)
    if isinstance(value, dict):
        value.pop("transport", None)  # earlier versions had another one beside `ssh`
    return typed.read_as(Settings, value, path, errors.ConfigError, f"`slipway remote {host} setup` writes it")


def write_settings(host: str, settings: Settings) -> Path:
    """Write the settings of a host, and return the path of the file."""
    path = settings_file(host)
    path.parent.mkdir(parents=True, exist_ok=True)
    jsonfile.publish_json(path, asdict(settings))
    return path


def source_of(study: Path, name: str) -> str:
    """Return the word for this file of this laptop on the cluster: NAME-<12 hex digits>."""
    content = f"{_laptop()}\0{os.path.realpath(study)}"
    return f"{name}-{hashlib.sha256(content.encode(errors='surrogateescape')).hexdigest()[:12]}"


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A `submit` whose result is not known yet. The same command has the same token, which the cluster takes once."""

    file: Path
    token: str

    def close(self) -> None:
        """Forget the token: the result of the submission is known."""
        self.file.unlink(missing_ok=True)


def submission(*what: object) -> Submission:
    """Return the open submission of `what`, else a new one, which is on the disk before anything is asked of the cluster."""
    file = _state() / "submissions" / hashlib.sha256(jsonfile.canonical_json(list(what))).hexdigest()[:24]
    file.parent.mkdir(parents=True, exist_ok=True)
    publish.publish_new(file, secrets.token_hex(4).encode())
    return Submission(file=file, token=file.read_text())


def without_wait(words: Sequence[str]) -> list[str]:
    """Return the words that make a submission another one: to wait for it does not."""
    return [word for word in words if word != "--wait"]


def _laptop() -> str:
    file = _state() / "laptop"
    file.parent.mkdir(parents=True, exist_ok=True)
    publish.publish_new(file, secrets.token_hex(8).encode())
    return file.read_text()


def _state() -> Path:
    from platformdirs import user_state_path

    return user_state_path(NAME) / "remote"
