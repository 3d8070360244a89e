"""libyaml's parser events -> plain values with the line of each. What is not allowed in our files is refused where it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from base.errors import ConfigError
from base.logs import printable
from workflow.study.places import Place, dotted
from workflow.study.scalars import AmbiguousScalar, plain_scalar

MAX_DEPTH: Final = 32


@dataclass
class _Open:
    """A mapping or list whose end has not been seen."""

    value: dict[str, Any] | list[Any]
    place: Place
    key: str | None = None


class Builder:
    """Takes parser events one by one; the stack of open containers is a list, so depth is a comparison and no recursion."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root: Any = None
        self.lines: dict[Place, int] = {}
        self.documents = 0
        self.stack: list[_Open] = []

    def take(self, event: Any) -> None:
        """One event of the parser. Raises ConfigError for what is not allowed here."""
        action = _ACTIONS.get(type(event))
        if action is not None:
            action(self, event)

    def document(self, event: Any) -> None:
        self.documents += 1
        if self.documents > 1:
            raise self.error(event, "a second YAML document starts here; one file holds one")

    def alias(self, event: Any) -> None:
        raise self.error(event, f"the alias *{event.anchor} is not allowed: write the value out, so that a reader sees it where it counts")

    def open(self, event: Any) -> None:
        self.refuse_marks(event)
        if len(self.stack) >= MAX_DEPTH:
            raise self.error(event, f"more than {MAX_DEPTH} levels of nesting")
        if self.wants_key():
            raise self.error(event, "a key must be a word, not a list or a mapping")
        value: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self.stack.append(_Open(value, self.add(value, event)))

    def close(self, _event: Any) -> None:
        self.stack.pop()

    def scalar(self, event: Any) -> None:
        self.refuse_marks(event)
        if self.wants_key():
            self.take_key(event)
        else:
            self.add(self.resolve(event), event)

    def take_key(self, event: Any) -> None:
        top = self.stack[-1]
        key = event.value
        if event.implicit[0] and not isinstance(self.resolve(event), str):
            raise self.error(event, f"the key {key or '(empty)'} is not a word; keys are words, quoted if they look like numbers")
        assert isinstance(top.value, dict)
        place = (*top.place, key)
        if key in top.value:
            raise self.error(event, f"the key {key!r} stands here a second time; the first is on line {self.lines[place]}. Keep one")
        self.lines[place] = event.start_mark.line + 1
        top.key = key

    def resolve(self, event: Any) -> Any:
        if not event.implicit[0]:
            return event.value
        try:
            return plain_scalar(event.value)
        except AmbiguousScalar as error:
            raise self.error(event, str(error)) from error

    def wants_key(self) -> bool:
        return bool(self.stack) and isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None

    def add(self, value: Any, event: Any) -> Place:
        """Put `value` where it belongs; its place."""
        if not self.stack:
            self.root = value
            return ()
        top = self.stack[-1]
        if isinstance(top.value, list):
            place: Place = (*top.place, len(top.value))
            top.value.append(value)
            self.lines[place] = event.start_mark.line + 1
            return place
        assert top.key is not None
        place = (*top.place, top.key)
        top.value[top.key] = value
        top.key = None
        return place

    def refuse_marks(self, event: Any) -> None:
        if event.anchor is not None:
            raise self.error(event, f"the anchor &{event.anchor} is not allowed: write the value out where it is used")
        if event.tag is not None:
            raise self.error(event, f"the tag {event.tag} is not allowed: values are plain text, numbers, lists and mappings")

    def error(self, event: Any, message: str) -> ConfigError:
        top = self.stack[-1] if self.stack else _Open([], ())
        place = top.place if top.key is None else (*top.place, top.key)
        inside = f"{dotted(place)}: " if place else ""
        return ConfigError(f"{self.path}:{event.start_mark.line + 1}: {inside}{printable(message)}")


_ACTIONS: Final[dict[type, Callable[[Builder, Any], None]]] = {
    yaml.DocumentStartEvent: Builder.document,
    yaml.AliasEvent: Builder.alias,
    yaml.MappingStartEvent: Builder.open,
    yaml.SequenceStartEvent: Builder.open,
    yaml.MappingEndEvent: Builder.close,
    yaml.SequenceEndEvent: Builder.close,
    yaml.ScalarEvent: Builder.scalar,
}
