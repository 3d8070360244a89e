"""Expand layers into candidates for cells: the product of axes and zip rows, less what is excluded, plus the include rows."""

import ast
import itertools
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from base.errors import ConfigError, SlipwayError
from base.humanize import choices
from containers import frameworks, models
from data_prep.spec import DatasetSpec
from workflow.study.cell import ARGS, NO_DATASET, Keys
from workflow.study.explain import Fault
from workflow.study.loader import KeyPath
from workflow.study.model import CellKeys, Optimizer, Steps, StudyFile, defaults, of_its_rule

# The `exclude` expressions: a small part of Python's syntax, which Python evaluates.


SYNTAX: Final = "comparisons (== != < <= > >=, in, not in) of keys with words, numbers or lists, joined by and, or, not"
_TRUTH: Final = {"true": True, "false": False}
_ALLOWED: Final = (
    *(ast.Expression, ast.Compare, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.Not, ast.USub, ast.expr_context),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
    *(ast.Name, ast.Attribute, ast.Constant, ast.List, ast.Tuple),
)


def compile_expression(text: str, names: tuple[str, ...]) -> Callable[[Keys], bool]:
    """Compile an expression to a function that tells whether a cell's keys match.

    Raises ConfigError without the file's line, which the caller knows.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "is" with a literal, and the like: refused below anyway
            tree = ast.parse(text.strip(), mode="eval")
        compares = isinstance(tree.body, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Name | ast.Attribute)
        code = compile(_Names(names).visit(tree), "<exclude>", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "it cannot be parsed"
        raise ConfigError(f"{text[:80]!r} is not an expression ({reason}); valid: {SYNTAX}") from error
    if not compares:
        raise ConfigError(f"{text[:80]!r} compares nothing; valid: {SYNTAX}")

    def matches(values: Keys) -> bool:
        try:
            return bool(eval(code, {"__builtins__": {}}, {**_TRUTH, **values}))  # noqa: S307 - only what _Names lets through
        except TypeError as error:
            raise ConfigError(f"{text!r} compares values of different kinds: {error}") from error

    return matches


class _Names(ast.NodeTransformer):
    """A check of an expression, which makes one name of a key with a dot, `args.width`. Raises ConfigError for what is not allowed."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not all(isinstance(part, _ALLOWED) for part in (node, *ast.iter_child_nodes(node))):
            raise ConfigError(f"{ast.unparse(node)[:80]!r} is not allowed in an expression; valid: {SYNTAX}")
        return super().generic_visit(node)

    def visit_Name(self, node: ast.Name | ast.Attribute) -> ast.Name:
        key = ast.unparse(node)
        if key not in self.names and key not in _TRUTH:
            quotes = f" (words need quotes: '{key}')" if isinstance(node, ast.Name) else ""
            raise ConfigError(f"unknown key {key[:80]!r} in the expression; {choices(key, self.names)}{quotes}")
        return ast.copy_location(ast.Name(key, ast.Load()), node)

    visit_Attribute = visit_Name


# The layers a cell's keys come from: base, axes, zip rows, include rows.


MAX_CELLS: Final = 100_000
EXCLUSIVE: Final = (("batch_size", "global_batch_size"), ("steps", "epochs"), ("framework", "program"))
NEEDED: Final = (("model", ("model", "program")), ("dataset", ("dataset", "program")))
"""The things that a cell cannot do without, and the keys that name them."""
MERGED: Final = ("optimizer", "steps")


@dataclass(frozen=True, kw_only=True)
class Layers:
    """The given keys of each layer as plain values.

    `optimizer` and `steps` are already completed from base and defaults; each argument is a key of its own, `args.width`.
    """

    base: Keys
    given: frozenset[str]  # keys of base that the file names
    axes: Mapping[str, tuple[Any, ...]]
    zip: tuple[Keys, ...]
    include: tuple[Keys, ...]

    @property
    def has_matrix(self) -> bool:
        """Return True if there are cells besides the include rows, which is not so when only `include` names cells."""
        return bool(self.axes or self.zip or not self.include)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return `args.NAME` of every argument that some cell may have."""
        keys = {*self.base, *self.axes, *(key for row in (*self.zip, *self.include) for key in row)}
        return tuple(sorted(key for key in keys if key.startswith(ARGS)))

    @property
    def num_cells(self) -> int:
        """Count the cells before any is excluded."""
        return math.prod(map(len, self.axes.values())) * max(1, len(self.zip)) * self.has_matrix + len(self.include)


def layers_of(keys: StudyFile) -> Layers:
    """Return the layers of a valid study file."""
    given = _with_single_args(keys.base.model_dump(exclude_unset=True))
    given.pop("repeats", None)
    plain = _with_single_args(defaults())
    merged = {key: {**plain[key], **given.get(key, {})} for key in MERGED}
    base = {**plain, **given, **merged}

    def complete(row: Keys) -> Keys:
        return {key: {**merged[key], **value} if key in MERGED else value for key, value in _with_single_args(row).items()}

    given_axes = _with_single_args(keys.axes.model_dump(exclude_unset=True))
    axes = {key: tuple(complete({key: value})[key] for value in values) for key, values in given_axes.items()}
    rows = [tuple(complete(row.model_dump(exclude_unset=True)) for row in part) for part in (keys.zip, keys.include)]
    return Layers(base=base, given=frozenset(given), axes=axes, zip=rows[0], include=rows[1])


def _with_single_args(keys: Keys) -> dict[str, Any]:
    args = {f"{ARGS}{name}": value for name, value in (keys.get("args") or {}).items()}
    return {**{key: value for key, value in keys.items() if key != "args"}, **args}


def layer_faults(layers: Layers, datasets: Mapping[str, DatasetSpec], programs: Collection[str]) -> list[Fault]:
    """Return what is wrong before any cell is made."""
    has_programs = any(key == "program" for _, key, _ in _values(layers))
    faults = [*_zip_faults(layers), *_combination_faults(layers)]
    if datasets[NO_DATASET].source != NO_DATASET:
        found = f"found source: {datasets[NO_DATASET].source} under {NO_DATASET!r}, which means no dataset; valid: another name"
        faults.append(Fault(place=("datasets", NO_DATASET), message=found))
    for place, key, value in _values(layers):
        message = _word_fault(key, value, datasets, programs) if key != "steps" else _steps_fault(value)
        if key == "model" and not has_programs and value not in models.MODELS:
            message = f"found {value!r}, which is not a model; {choices(value, models.MODELS)}"
        if message:
            faults.append(Fault(place=place, message=message))
    if not faults and layers.num_cells > MAX_CELLS:
        factors = [f"{len(values)} {key}" for key, values in layers.axes.items()] + ([f"{len(layers.zip)} zip rows"] if layers.zip else [])
        counted = f"{layers.num_cells:,} cells ({' x '.join(factors)})"
        faults.append(Fault(place=("axes",), message=f"found {counted}, before exclude; valid: at most {MAX_CELLS:,} in a study"))
    return faults


def _values(layers: Layers) -> Iterator[tuple[KeyPath, str, Any]]:
    for key in layers.given:
        yield ("base", key), key, layers.base[key]
    for key, values in layers.axes.items():
        for number, value in enumerate(values):
            yield ("axes", key, number), key, value
    for part, rows in (("zip", layers.zip), ("include", layers.include)):
        for number, row in enumerate(rows):
            for key, value in row.items():
                yield (part, number, key), key, value


def _word_fault(key: str, value: Any, datasets: Collection[str], programs: Collection[str]) -> str | None:
    if key == "dataset" and value not in datasets:
        return f"found {value!r}, which is not under datasets; {choices(value, datasets)}"
    if key == "program" and value not in programs:
        return (
            f"found {value!r}, which is not under programs; {choices(value, programs) if programs else 'valid: a name that stands there'}"
        )
    if key == "framework":
        try:
            frameworks.load_framework(value)
        except SlipwayError as error:
            return str(error)
    return None


def _steps_fault(steps: Mapping[str, int]) -> str | None:
    needed = steps["warmup"] + steps["measured"]
    total = steps.get("total", needed)
    return (
        f"found total {total}; valid: at least warmup {steps['warmup']} + measured {steps['measured']} = {needed}"
        if total < needed
        else None
    )


def _zip_faults(layers: Layers) -> Iterator[Fault]:
    for number, row in enumerate(layers.zip):
        both = sorted(set(row) & set(layers.axes))
        if both and number == 0:
            yield Fault(place=("zip", 0, both[0]), message=f"{both[0]} stands in axes and in zip; valid: one of them")
        if set(row) != set(layers.zip[0]):
            odd = ", ".join(sorted(set(row) ^ set(layers.zip[0])))
            yield Fault(
                place=("zip", number), message=f"this row and the first differ in their keys ({odd}); valid: the same keys in every row"
            )


def _combination_faults(layers: Layers) -> Iterator[Fault]:
    """Yield faults of the matrix and of each include row: keys that exclude each other, and missing keys that a cell cannot do without."""
    rows = [(("include", number), set(row)) for number, row in enumerate(layers.include)]
    parts: list[tuple[KeyPath, set[str]]] = [*rows]
    if layers.has_matrix:
        parts.insert(0, (("axes",), {*layers.axes, *(layers.zip[0] if layers.zip else ())}))
    for place, keys in parts:
        both = keys | layers.given
        for one, other in EXCLUSIVE:
            if one in both and other in both:
                where = next((p for k in (one, other) for p in [key_path_of(layers, place, k)] if p[0] != "base"), ("base", other))
                yield Fault(place=where, message=f"{one} and {other} are both given for the same cells; valid: exactly one of them")
        for key, sayers in NEEDED:
            if not both & set(sayers):
                yield Fault(place=place, message=f"no {key} for these cells; valid: {key} in base, axes, zip or each include row")
        if not both & {"batch_size", "global_batch_size"}:
            yield Fault(place=place, message="no batch for these cells; valid: exactly one of batch_size (per GPU) and global_batch_size")


def key_path_of(layers: Layers, part: KeyPath, key: str) -> KeyPath:
    """Return the place of `key` for the cells of `part`: an include row, a zip row, or the axes alone."""
    if part[0] == "include":
        return (*part, key) if key in layers.include[int(part[1])] else ("base", key)
    if key in layers.axes:
        return ("axes", key)
    if layers.zip and key in layers.zip[0]:
        return (*part, key) if part[0] == "zip" else ("zip", 0, key)
    return ("base", key)


EXPRESSION_KEYS: Final = tuple(
    key
    for key in (*CellKeys.model_fields, "world_size", *Optimizer.model_fields, *Steps.model_fields)
    if key not in ("steps", "name", "args")
)
"""The names that an exclude expression can use: every key, and the parts of optimizer and steps. `optimizer` is its name."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The keys of a cell before they are checked, and the row of axes, zip or include that they come from."""

    keys: Keys
    place: KeyPath


def candidates(layers: Layers) -> Iterator[Candidate]:
    """Yield all combinations, then the include rows."""
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
    keys.setdefault("bucket_cap_mb", None)
    keys.setdefault("evaluate_every", None)
    keys.setdefault("crop_size", None)
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


def expression_values(keys: Keys) -> Keys:
    """Return the values that an exclude expression can name."""
    optimizer = keys["optimizer"]
    steps = keys["steps"] or dict.fromkeys(Steps.model_fields)
    args = {f"{ARGS}{name}": value for name, value in (keys["args"] or {}).items()}
    return {**keys, **steps, **dict.fromkeys(Optimizer.model_fields), **optimizer, **args, "optimizer": optimizer["name"]}


def excluded(layers: Layers, texts: Sequence[str]) -> tuple[list[Candidate], list[int], list[Fault]]:
    """Return the candidates that stay, how many each expression removed, and the faults of the expressions."""
    faults: list[Fault] = []
    conditions: list[Callable[[Keys], bool]] = []
    for number, text in enumerate(texts):
        try:
            conditions.append(compile_expression(text, (*EXPRESSION_KEYS, *layers.arguments)))
        except ConfigError as error:
            faults.append(Fault(place=("exclude", number), message=str(error)))
    removed = [0] * len(texts)
    if faults:
        return [], removed, faults
    kept = []
    for candidate in candidates(layers):
        applied = conditions if candidate.place[0] != "include" else []
        values = {**dict.fromkeys(layers.arguments), **expression_values(candidate.keys)} if applied else {}
        for number, matches in enumerate(applied):
            try:
                is_excluded = matches(values)
            except ConfigError as error:
                return [], removed, [Fault(place=("exclude", number), message=str(error))]
            if is_excluded:
                removed[number] += 1
                break
        else:
            kept.append(candidate)
    return kept, removed, []
