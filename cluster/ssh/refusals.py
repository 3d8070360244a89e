"""What a connection failed of, by the words of `ssh`, and what to do. Pure."""

from __future__ import annotations

import re
from typing import Final

from base.command import last_lines

UNKNOWN: Final = re.compile(r"No \S+ host key is known for|authenticity of host .* can't be established")
CHANGED: Final = "REMOTE HOST IDENTIFICATION HAS CHANGED"
DENIED: Final = re.compile(r"Permission denied \((?P<ways>[^)]*)\)|Too many authentication failures")
NAME: Final = re.compile(r"Could not resolve hostname (\S+):")
LOST: Final = re.compile(
    r"Connection (timed out|reset|closed|refused)|Connection to .* (closed|timed out)|No route to host|Network is unreachable|"
    r"Broken pipe|mux_client_|Timeout, server|kex_exchange_identification|Operation timed out|Temporary failure in name resolution"
)
"""What may pass by itself."""


def is_lost(said: str) -> bool:
    """Whether the line, and not the login, is at fault, so that the same may do later."""
    return LOST.search(said) is not None and not DENIED.search(said)


def needs_person(said: str) -> bool:
    """Whether the host asks for what only a person can say: a password, or a second factor."""
    found = DENIED.search(said)
    return found is not None and bool({"password", "keyboard-interactive"} & set((found["ways"] or "").split(",")))


def advice_on(host: str, said: str) -> str:
    """One paragraph for an error message."""
    lines = last_lines(said, 4)
    if CHANGED in said:
        return (
            f"the key of {host} is not the one that your known_hosts has: either the centre has a new one, or somebody stands between. "
            f"Nothing was sent. Ask the centre for the fingerprint of today; only if it has changed, `ssh-keygen -R {host}`, then `ssh "
            f"{host}` and compare:\n{_offending(said) or lines}"
        )
    if UNKNOWN.search(said):
        return (
            f"the key of {host} is not known here, and none is accepted unseen: type `ssh {host}` once, compare the fingerprint with the "
            f"one that the centre publishes, and answer yes; then the same command again:\n{lines}"
        )
    if found := DENIED.search(said):
        ways = found["ways"] or "every key was refused"
        return (
            f"{host} refuses the login ({ways}): `ssh {host}` in a terminal must work first. A second factor is asked for by `slipway "
            f"remote {host} setup` in a terminal, and then the line stays open for ten minutes after each use:\n{lines}"
        )
    if found := NAME.search(said):
        return f"no host is called {found[1]} here; valid: a name of your ssh configuration, HOST, or USER@HOST:\n{lines}"
    if is_lost(said):
        return f"{host} is not reached now; the same command again goes on:\n{lines}"
    return f"ssh to {host} failed:\n{lines}"


def _offending(said: str) -> str:
    return "\n".join(line for line in said.splitlines() if line.startswith(("SHA256:", "Offending", "Host key for")))
