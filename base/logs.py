"""Log for people on stderr; data for machines never goes here."""

import logging
import os
import re
import sys

from base.sanitize import printable as printable

_LINE = re.compile(r"\d\d:\d\d:\d\d \S+ (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<message>.*)")
_SECRET = re.compile(r"(?i)\b((?:[a-z0-9_]*(?:token|password|passwd|secret|api_?key))\s*[=:]\s*)\S+")


def masked(text: str) -> str:
    """Return `text` with the values of what looks like secrets replaced."""
    return _SECRET.sub(r"\1***", text)


def level_and_message(line: str) -> tuple[str, str] | None:
    """Split a line that a logger of `configure` wrote; None for any other line, such as a later one of a long message."""
    found = _LINE.fullmatch(line)
    return None if found is None else (found["level"], found["message"])


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(masked(super().format(record)))


def configure(name: str) -> None:
    """Log to stderr as `time name level message`. Called once, from a main function only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(f"%(asctime)s {name} %(levelname)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def private_umask(group: bool = False) -> None:
    """Set the umask: what we create is ours alone (077), or our group may read it (027) where the site file says `shared: group`."""
    os.umask(0o027 if group else 0o077)
