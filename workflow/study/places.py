"""Where something stands in a file, and what stands there, in the words of YAML's users."""

from __future__ import annotations

from base.logs import printable

Place = tuple[str | int, ...]  # keys and list positions from the top of the file: ("axes", "nodes", 0)


def dotted(place: Place) -> str:
    """A place for people: `axes.nodes[0]`."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else printable(part)
    return text


def kind_of(value: object) -> str:
    """What a value is, in the words of YAML's users."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the truth value {str(value).lower()}"
    if isinstance(value, int):
        return f"the whole number {value}"
    if isinstance(value, float):
        return f"the number {value!r}"
    if isinstance(value, str):
        return f"the text {value[:77] + '...' if len(value) > 80 else value!r}"
    if isinstance(value, dict):
        return "a mapping (key: value)"
    return "a list"
