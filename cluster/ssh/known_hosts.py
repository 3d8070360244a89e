"""The keys under which a host is known, read line by line: a line with a mark is none of these, and must not hide the others."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from cluster.ssh.settings import HostSettings

SSH_PORT = 22


class Known(NamedTuple):
    """`keys`: (kind, base64) that are the host's; `authority`: the file that has a certificate authority for it, None: none has."""

    keys: frozenset[tuple[str, str]]
    authority: str | None


def known_keys(wanted: HostSettings) -> Known:
    """Of the files of `wanted`, as far as they are there."""
    name = wanted.alias if wanted.port == SSH_PORT or wanted.alias != wanted.hostname else f"[{wanted.hostname}]:{wanted.port}"
    texts = []
    for file in wanted.known_hosts:
        try:
            texts.append((file, Path(file).read_text(errors="replace")))
        except OSError:
            continue  # ssh takes no notice of one that is not there either
    return parse_known(texts, name.lower())


def parse_known(files: Iterable[tuple[str, str]], name: str) -> Known:
    """Pure: of (file, its text). A revoked key is no key of the host."""
    keys: set[tuple[str, str]] = set()
    revoked: set[tuple[str, str]] = set()
    authority = None
    for file, mark, key in _lines_of(files, name):
        if mark == "@cert-authority":
            authority = authority or file
        else:
            (revoked if mark == "@revoked" else keys).add(key)
    return Known(frozenset(keys - revoked), authority)


def _lines_of(files: Iterable[tuple[str, str]], name: str) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """(file, mark or "", (kind, base64)) of the lines that are about `name`."""
    for file, text in files:
        for line in text.splitlines():
            words = line.split()
            mark = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) >= 3 and not words[0].startswith("#") and is_about(words[0], name):
                yield file, mark, (words[1], words[2])


def is_about(patterns: str, name: str) -> bool:
    """Whether the first field of a line names the host: hashed, or patterns of which none with `!` fits."""
    if patterns.startswith("|1|"):
        return _is_hash_of(patterns, name)
    found = [(one.startswith("!"), fnmatch.fnmatchcase(name, _literal(one.removeprefix("!").lower()))) for one in patterns.split(",")]
    return any(fits and not negated for negated, fits in found) and not any(fits and negated for negated, fits in found)


def _literal(pattern: str) -> str:
    """`[` is no set here."""
    return pattern.replace("[", "[[]")


def _is_hash_of(field: str, name: str) -> bool:
    try:
        _, _, salt, digest = field.split("|")
        found = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(found, base64.b64decode(digest))
    except ValueError:
        return False
