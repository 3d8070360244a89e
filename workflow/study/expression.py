"""The `exclude` expressions: a small part of Python's syntax over a cell's keys, parsed to a tree and walked, never evaluated as code."""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

from base.errors import ConfigError
from base.names import choices

MAX_BYTES: Final = 1024
MAX_DEPTH: Final = 20
SYNTAX: Final = "comparisons (== != < <= > >=, in, not in) of keys with words, numbers or lists, joined by and, or, not"

Values = Mapping[str, Any]
Condition = Callable[[Values], Any]

_TRUTH: Final = {"true": True, "false": False}
_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


def compile_expression(text: str, names: tuple[str, ...]) -> Callable[[Values], bool]:
    """A function from a cell's keys to whether it matches. Raises ConfigError (without the file's line, which the caller knows)."""
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise ConfigError(f"an expression has at most {MAX_BYTES} bytes, this one has more")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "is" with a literal, and the like: refused below anyway
            tree = ast.parse(text.strip(), mode="eval").body
        condition = _compile(tree, names, 1)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "it cannot be parsed"
        raise ConfigError(f"{text!r} is not an expression ({reason}); valid: {SYNTAX}") from error
    if not isinstance(tree, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Name | ast.Attribute):
        raise ConfigError(f"{text!r} compares nothing; valid: {SYNTAX}")

    def matches(values: Values) -> bool:
        try:
            return bool(condition(values))
        except TypeError as error:
            raise ConfigError(f"{text!r} compares values of different kinds: {error}") from error

    return matches


def _compile(node: ast.AST, names: tuple[str, ...], depth: int) -> Condition:
    if depth > MAX_DEPTH:
        raise ConfigError(f"the expression nests more than {MAX_DEPTH} levels")
    builder = _BUILDERS.get(type(node))
    if builder is None:
        raise ConfigError(f"{ast.unparse(node)[:80]!r} is not allowed in an expression; valid: {SYNTAX}")
    return builder(node, names, depth)


def _name(node: Any, names: tuple[str, ...], _depth: int) -> Condition:
    key = node.id
    if key in _TRUTH:
        return lambda _values: _TRUTH[key]
    if key not in names:
        raise ConfigError(f"unknown key {key!r} in the expression; {choices(key, names)} (words need quotes: '{key}')")
    return operator.itemgetter(key)


def _argument(node: Any, names: tuple[str, ...], _depth: int) -> Condition:
    """`args.width`: a key with a dot."""
    key = ast.unparse(node)
    if key not in names:
        raise ConfigError(f"unknown key {key[:80]!r} in the expression; {choices(key, names)}")
    return operator.itemgetter(key)


def _constant(node: Any, _names: tuple[str, ...], _depth: int) -> Condition:
    value = node.value
    if value is not None and not isinstance(value, str | int | float | bool):
        raise ConfigError(f"{ast.unparse(node)[:80]!r} is not allowed in an expression; valid: {SYNTAX}")
    return lambda _values: value


def _sequence(node: Any, names: tuple[str, ...], depth: int) -> Condition:
    for element in node.elts:
        if not isinstance(element, ast.Constant | ast.UnaryOp):
            raise ConfigError(f"a list in an expression holds words and numbers only, not {ast.unparse(element)[:80]!r}")
    parts = [_compile(element, names, depth + 1) for element in node.elts]
    return lambda values: tuple(part(values) for part in parts)


def _unary(node: Any, names: tuple[str, ...], depth: int) -> Condition:
    inner = _compile(node.operand, names, depth + 1)
    if isinstance(node.op, ast.Not):
        return lambda values: not inner(values)
    if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant) and type(node.operand.value) in (int, float):
        return lambda values: -inner(values)
    raise ConfigError(f"{ast.unparse(node)[:80]!r} is not allowed in an expression; valid: {SYNTAX}")


def _boolean(node: Any, names: tuple[str, ...], depth: int) -> Condition:
    parts = [_compile(value, names, depth + 1) for value in node.values]
    if isinstance(node.op, ast.And):
        return lambda values: all(part(values) for part in parts)
    return lambda values: any(part(values) for part in parts)


def _comparison(node: Any, names: tuple[str, ...], depth: int) -> Condition:
    sides = [_compile(side, names, depth + 1) for side in (node.left, *node.comparators)]
    compares = [_comparator(kind, side) for kind, side in zip(node.ops, node.comparators, strict=True)]

    def holds(values: Values) -> bool:
        left = sides[0](values)
        for compare, side in zip(compares, sides[1:], strict=True):
            right = side(values)
            if not compare(left, right):
                return False
            left = right
        return True

    return holds


def _comparator(kind: ast.cmpop, right: ast.AST) -> Callable[[Any, Any], Any]:
    if type(kind) not in _COMPARE:
        raise ConfigError(f"`is` is not allowed in an expression; valid: {SYNTAX}")
    if isinstance(kind, ast.In | ast.NotIn) and not isinstance(right, ast.List | ast.Tuple):
        raise ConfigError("`in` needs a list on its right, such as batch_size in [32, 64]")
    return _COMPARE[type(kind)]


_BUILDERS: Final[dict[type[ast.AST], Callable[[Any, tuple[str, ...], int], Condition]]] = {
    ast.Name: _name,
    ast.Attribute: _argument,
    ast.Constant: _constant,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.UnaryOp: _unary,
    ast.BoolOp: _boolean,
    ast.Compare: _comparison,
}
