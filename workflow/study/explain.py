"""Explain pydantic's errors in the words of the file: file:line, key path, what was found, what is valid, the closest valid word."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from base import errors, humanize, logs
from workflow.study.loader import Document, KeyPath, dotted, kind_of

MAX_SHOWN: Final = 20


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault at one place of the file; `message` says found and valid."""

    place: KeyPath
    message: str


def fault_error(document: Document, faults: Sequence[Fault]) -> errors.ConfigError:
    """Make one error of all `faults`, a line each, in the order of the file."""
    lines = {": ".join(filter(None, (document.where(one.place), dotted(one.place), one.message))): one for one in faults}
    ordered = sorted(lines, key=lambda line: int(document.where(lines[line].place).rpartition(":")[2]))
    if len(ordered) > MAX_SHOWN:
        ordered[MAX_SHOWN:] = [f"{document.path}: {humanize.and_more(len(ordered), MAX_SHOWN, 'errors')}"]
    return errors.ConfigError("\n".join(logs.printable(line) for line in ordered))


def validation_error(document: Document, error: ValidationError, model: type[BaseModel], hints: Mapping[str, str]) -> errors.ConfigError:
    """Explain an error of validating the document as `model`.

    `hints`: words about keys that stand in the wrong place or in the wrong file.
    """
    faults = [fault for details in error.errors(include_url=False) if (fault := _fault(details, document, model, hints))]
    # One fault per place: the first, which is the most specific where a union has several.
    return fault_error(document, list({fault.place: fault for fault in reversed(faults)}.values()))


def first_names(names: Iterable[str]) -> str:
    """Name the first eight, and say how many more there are."""
    return humanize.some(list(names), 8)


def _fault(details: ErrorDetails, document: Document, model: type[BaseModel], hints: Mapping[str, str]) -> Fault | None:
    """Explain one of pydantic's errors.

    It is None for a complaint of the wrong branch of a union, which is not about what stands there.
    """
    place: KeyPath = ()
    found: Any = document.value
    part: Any  # pydantic says that a list is indexed by numbers only
    for part in _dots_kept(details["loc"], document.value):
        if (isinstance(found, dict) and part in found) or (isinstance(found, list) and isinstance(part, int) and part < len(found)):
            place, found = (*place, part), found[part]
        elif details["type"] == "missing" and part == details["loc"][-1]:
            return Fault(place=(*place, part), message="this key is missing")
        elif part != "[key]" and str(part)[:1].isupper() != isinstance(found, dict):
            return None  # pydantic names the branch: a model has a capital letter, and models are for mappings
    if details["type"] == "too_short" and found:
        return None  # pydantic counts what is valid; what is wrong with the entries is said beside them
    is_cell_key = place[:1] == ("base",) and place[1:] not in ((), ("repeats",))
    several = "; several values are written under axes" if is_cell_key and isinstance(found, list) else ""
    return Fault(place=place, message=_message(details, found, place, model, hints) + several)


def _dots_kept(location: tuple[int | str, ...], value: Any) -> Iterator[int | str]:
    """Yield the parts of `location` as the file has them: `args.width` is one key there, and `args`, `width` to the model."""
    parts, found = list(location), value
    while parts:
        both = f"{parts[0]}.{parts[1]}" if len(parts) > 1 else ""
        part: Any = parts.pop(0)
        if isinstance(found, dict) and part not in found and both in found:
            part, parts = both, parts[1:]
        yield part
        reachable = part in found if isinstance(found, dict) else isinstance(found, list) and isinstance(part, int) and part < len(found)
        found = found[part] if reachable else found


def _message(details: ErrorDetails, found: Any, place: KeyPath, model: type[BaseModel], hints: Mapping[str, str]) -> str:
    kind = details["type"]
    if kind == "slipway":
        return details["msg"]
    if kind == "extra_forbidden":
        return _unknown_key(place, model, hints)
    if kind == "value_error":
        return details["msg"].removeprefix("Value error, ")
    if kind == "literal_error":
        valid = re.findall(r"'([^']*)'", details["msg"])
        return f"found {kind_of(found)}; {humanize.choices(str(found), valid)}"
    such_as = f", such as {{{', '.join(f'{key}: ...' for key in _known_keys(place, model)[:2])}}}" if kind.startswith("model_") else ""
    fits = _KINDS.get(kind.partition("_")[0]) or details["msg"].removeprefix("Input should be ")
    return f"found {kind_of(found)}; valid: {fits}{such_as}"


def _unknown_key(place: KeyPath, model: type[BaseModel], hints: Mapping[str, str]) -> str:
    key = str(place[-1])
    known = _known_keys(place[:-1], model)
    if key not in known and (hint := hints.get(key) or _valid_path(key, model)):
        return f"unknown key here: {hint}"
    outer, _, inner = key.partition(".")
    if inner and outer in known:
        mapping = f"{{{inner}: ...}}"
        return f"unknown key; write {outer}: {f'[{mapping}, {mapping}]' if place[0] == 'axes' else mapping}"
    return f"unknown key; {humanize.choices(key, known)}"


def _valid_path(key: str, model: type[BaseModel], outer: str = "") -> str:
    """Say where the key stands, from the top of the file; "" where it stands nowhere."""
    if key in model.model_fields:
        return f"it stands in {outer}" if outer else "it stands at the top level of the file"
    inner = ((name, _model_in(field.annotation)) for name, field in model.model_fields.items())
    return next((found for name, one in inner if one and (found := _valid_path(key, one, f"{outer}.{name}".lstrip(".")))), "")


def _known_keys(place: KeyPath, model: type[BaseModel]) -> list[str]:
    current: Any = model
    for part in place:
        if isinstance(current, type) and issubclass(current, BaseModel) and part in current.model_fields:
            current = _model_in(current.model_fields[str(part)].annotation)
    return list(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else []


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = _model_in(inner)
        if found is not None:
            return found
    return None


_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text (quote it if it looks like a number)",
    **dict.fromkeys(("model", "dict"), "a mapping of keys to values"),
    **dict.fromkeys(("tuple", "list"), "a list, also for one value: [...]"),
    "too": "at least one entry",
}
"""What is valid, by the first word of pydantic's name of an error, where its own words are Python's."""
