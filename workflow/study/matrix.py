"""Layers -> candidates for cells: the product of axes and zip rows, less what is excluded, plus the include rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from base.errors import ConfigError
from workflow.study.cell import ARGS, NO_DATASET
from workflow.study.explain import Fault
from workflow.study.expression import compile_expression
from workflow.study.layers import Layers
from workflow.study.model import CellKeys, Optimizer, Steps, of_its_rule
from workflow.study.places import Place

EXPRESSION_KEYS: Final = tuple(
    key
    for key in (*CellKeys.model_fields, "world_size", *Optimizer.model_fields, *Steps.model_fields)
    if key not in ("steps", "name", "args")
)
"""What an exclude expression can name: every key, and the parts of optimizer and steps. `optimizer` is its name."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A cell's keys before they are checked, and which row of axes, zip or include they come from."""

    keys: Mapping[str, Any]
    place: Place


def candidates(layers: Layers) -> Iterator[Candidate]:
    """All combinations, then the include rows."""
    if layers.has_matrix:
        names = tuple(layers.axes)
        rows = layers.zip or ({},)
        for values in itertools.product(*layers.axes.values()):
            chosen = {**layers.base, **dict(zip(names, values, strict=True))}
            for number, row in enumerate(rows):
                yield Candidate(keys=complete({**chosen, **row}), place=("zip", number) if row else ("axes",))
    for number, row in enumerate(layers.include):
        yield Candidate(keys=complete({**layers.base, **row}), place=("include", number))


def complete(keys: dict[str, Any]) -> dict[str, Any]:
    """Add what follows from the others: world size, both batches, the total of the steps, a program's name as its model and
    `none` as its dataset; `args` together; `steps` is None where `epochs` is given.

    A global batch that does not divide gives a `batch_size` with a fraction, which expressions can compare and the check refuses.
    """
    names = [key for key in keys if key.startswith(ARGS)]
    keys["args"] = {key.removeprefix(ARGS): keys.pop(key) for key in sorted(names)} or None
    keys.setdefault("program", None)
    if keys["program"] is not None:
        keys.setdefault("model", keys["program"])
        keys.setdefault("dataset", NO_DATASET)
    keys["optimizer"] = of_its_rule(keys["optimizer"])
    world = keys["nodes"] * keys["gpus_per_node"]
    keys["world_size"] = world
    if "global_batch_size" in keys:
        whole, rest = divmod(keys["global_batch_size"], world)
        keys["batch_size"] = keys["global_batch_size"] / world if rest else whole
    else:
        keys["global_batch_size"] = keys["batch_size"] * world
    if "epochs" in keys:
        keys["steps"] = None
    else:
        keys["epochs"] = None
        steps = keys["steps"]
        if "total" not in steps:
            keys["steps"] = {**steps, "total": steps["warmup"] + steps["measured"]}
    return keys


def expression_values(keys: Mapping[str, Any]) -> dict[str, Any]:
    """What an exclude expression can name."""
    optimizer = keys["optimizer"]
    steps = keys["steps"] or dict.fromkeys(Steps.model_fields)
    args = {f"{ARGS}{name}": value for name, value in (keys["args"] or {}).items()}
    return {**keys, **steps, **dict.fromkeys(Optimizer.model_fields), **optimizer, **args, "optimizer": optimizer["name"]}


def excluded(layers: Layers, texts: Sequence[str]) -> tuple[list[Candidate], list[int], list[Fault]]:
    """The candidates that stay, how many each expression removed, and the faults of the expressions."""
    faults: list[Fault] = []
    conditions: list[Callable[[Mapping[str, Any]], bool]] = []
    for number, text in enumerate(texts):
        try:
            conditions.append(compile_expression(text, (*EXPRESSION_KEYS, *layers.arguments)))
        except ConfigError as error:
            faults.append(Fault(place=("exclude", number), message=str(error)))
    removed = [0] * len(texts)
    if faults or not texts:
        return ([] if faults else list(candidates(layers))), removed, faults
    kept = []
    for candidate in candidates(layers):
        if candidate.place[0] != "include":
            try:
                matched = _first_match(conditions, {**dict.fromkeys(layers.arguments), **expression_values(candidate.keys)})
            except _Mismatch as error:
                return [], removed, [Fault(place=("exclude", error.number), message=str(error.reason))]
            if matched is not None:
                removed[matched] += 1
                continue
        kept.append(candidate)
    return kept, removed, []


class _Mismatch(Exception):
    def __init__(self, number: int, reason: ConfigError) -> None:
        super().__init__(str(reason))
        self.number = number
        self.reason = reason


def _first_match(conditions: Sequence[Callable[[Mapping[str, Any]], bool]], values: Mapping[str, Any]) -> int | None:
    for number, condition in enumerate(conditions):
        try:
            if condition(values):
                return number
        except ConfigError as error:
            raise _Mismatch(number, error) from error
    return None
