"""Read pickles, and build nothing but lists, tuples, dicts, numbers, bytes, strings and arrays of bytes.

Python's own unpickler calls whatever the file names. This one looks at the opcodes and never imports or calls anything: the few globals
that numpy writes are recognised by name and become plain records, everything else is refused.
"""

from __future__ import annotations

import math
import pickletools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_prep.sources.types import MAX_MEMBER_BYTES, Pixels

_MAX_OPCODES = 1_000_000  # the largest file of CIFAR has some 300,000
_MAX_INTEGER_BITS = 128
_MAX_COPIES = 4  # bytes made from other bytes, as a multiple of the file's own
_MARK = object()
_INTEGERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"}
_BYTES = {"STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_TEXTS = {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_VALUES = _INTEGERS | _BYTES | _TEXTS | {"FLOAT", "BINFLOAT"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_IGNORED = frozenset({"PROTO", "FRAME"})
_RECONSTRUCT = "reconstruct"
_ARRAY = "ndarray"
_DTYPE = "dtype"
_ENCODE = "encode"
_FROM_BUFFER = "frombuffer"
_GLOBALS = {
    "_codecs encode": _ENCODE,
    "numpy ndarray": _ARRAY,
    "numpy dtype": _DTYPE,
    **{f"{module}.multiarray _reconstruct": _RECONSTRUCT for module in ("numpy.core", "numpy._core")},
    **{f"{module}.numeric _frombuffer": _FROM_BUFFER for module in ("numpy.core", "numpy._core")},
}


class UnsafePickle(ValueError):
    """The pickle asks for something that is not data, or is damaged."""


@dataclass(frozen=True)
class _Global:
    kind: str


@dataclass
class _Dtype:
    code: str


@dataclass
class _Array:
    """An ndarray that its BUILD opcode will fill."""

    shape: tuple[int, ...] = ()
    content: bytes | None = None


def loads(content: bytes) -> Any:
    """Read the value in a pickle of any protocol. Arrays of uint8 become numpy arrays, read-only. Raises UnsafePickle."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in old text pickles
            return _finished(_Machine().run(content))
    except UnsafePickle:
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise UnsafePickle(f"damaged: {type(error).__name__}: {error}") from error


def _operations(content: bytes) -> Iterator[tuple[str, Any]]:
    for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if number > _MAX_OPCODES:
            raise UnsafePickle(f"more than {_MAX_OPCODES} operations")
        yield opcode.name, argument


class _Machine:
    """The stack machine of pickle, without the operations that name code."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self._left = 0

    def run(self, content: bytes) -> Any:
        """Return the value on top of the stack at STOP."""
        self._left = _MAX_COPIES * len(content)
        for name, argument in _operations(content):
            if name == "STOP":
                return self.stack.pop()
            if name in _VALUES:
                self.stack.append(_bounded(argument))
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif name not in _IGNORED:
                operation = getattr(self, f"_op_{name.lower()}", None)
                if operation is None:
                    raise UnsafePickle(f"operation {name} builds something that is not data")
                operation(argument)
        raise UnsafePickle("damaged: it does not end")

    def _marked(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise UnsafePickle("damaged: a mark is missing")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def _op_mark(self, _: Any) -> None:
        self.stack.append(_MARK)

    def _op_pop(self, _: Any) -> None:
        self.stack.pop()

    def _op_pop_mark(self, _: Any) -> None:
        self._marked()

    def _op_dup(self, _: Any) -> None:
        self.stack.append(self.stack[-1])

    def _op_empty_list(self, _: Any) -> None:
        self.stack.append([])

    def _op_empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def _op_empty_tuple(self, _: Any) -> None:
        self.stack.append(())

    def _op_list(self, _: Any) -> None:
        self.stack.append(self._marked())

    def _op_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self._marked()))

    def _op_tuple1(self, _: Any) -> None:
        self._take_tuple(1)

    def _op_tuple2(self, _: Any) -> None:
        self._take_tuple(2)

    def _op_tuple3(self, _: Any) -> None:
        self._take_tuple(3)

    def _take_tuple(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.stack.append(items)

    def _op_dict(self, _: Any) -> None:
        items = self._marked()
        self.stack.append(_pairs(items))

    def _op_append(self, _: Any) -> None:
        item = self.stack.pop()
        _expect(self.stack[-1], list).append(item)

    def _op_appends(self, _: Any) -> None:
        items = self._marked()
        _expect(self.stack[-1], list).extend(items)

    def _op_setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _expect(self.stack[-1], dict).update(_pairs([key, value]))

    def _op_setitems(self, _: Any) -> None:
        items = self._marked()
        _expect(self.stack[-1], dict).update(_pairs(items))

    def _op_put(self, number: Any) -> None:
        self.memo[int(number)] = self.stack[-1]

    _op_binput = _op_long_binput = _op_put

    def _op_memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _op_get(self, number: Any) -> None:
        self.stack.append(self.memo[int(number)])

    _op_binget = _op_long_binget = _op_get

    def _op_global(self, name: Any) -> None:
        kind = _GLOBALS.get(name)
        if kind is None:
            raise UnsafePickle(f"it asks for {name!r}, which is not data")
        self.stack.append(_Global(kind))

    def _op_stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self._op_global(f"{module} {name}")

    def _op_reduce(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        self.stack.append(_reduced(_expect(function, _Global).kind, _expect(arguments, tuple), self._made))

    def _made(self, content: bytes) -> bytes:
        """Count a copy of `content` against the limit, so that a value that is named again and again does not become many."""
        self._left -= len(content)
        if self._left < 0:
            raise UnsafePickle(f"it copies its own bytes more than {_MAX_COPIES} times")
        return content

    def _op_build(self, _: Any) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, _Array):
            _, target.shape, dtype, fortran, content = state
            target.content = self._made(_array_bytes(content, dtype))
            if fortran:
                raise UnsafePickle("an array in Fortran order")
        elif not isinstance(target, _Dtype):
            raise UnsafePickle(f"a state for a {type(target).__name__}")


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        raise UnsafePickle(f"a number of {value.bit_length()} bits")
    return value


def _pairs(items: list[Any]) -> dict[Any, Any]:
    """Build a dict with text keys only: hashing nested tuples can take for ever, and numbers can be chosen so that all hashes collide."""
    for key in items[::2]:
        _expect(key, (str, bytes))
    return dict(zip(items[::2], items[1::2], strict=True))


def _reduced(kind: str, arguments: tuple[Any, ...], made: Callable[[bytes], bytes]) -> Any:
    """Make what numpy's and Python's few functions would have made of their arguments."""
    if kind == _ENCODE:
        text, encoding = arguments
        if encoding not in ("latin1", "latin-1"):
            raise UnsafePickle(f"an encoding {encoding!r}")
        return made(_expect(text, str).encode("latin-1"))
    if kind == _DTYPE:
        return _Dtype(_text(arguments[0]))
    if kind == _RECONSTRUCT:
        if arguments[0] != _Global(_ARRAY):
            raise UnsafePickle("an array of a class of its own")
        return _Array()
    if kind == _FROM_BUFFER:
        content, dtype, shape, order = arguments
        if order != "C":
            raise UnsafePickle("an array in Fortran order")
        return _Array(shape=shape, content=made(_array_bytes(content, dtype)))
    raise UnsafePickle(f"a call of {kind}")


def _array_bytes(content: Any, dtype: Any) -> bytes:
    if _expect(dtype, _Dtype).code not in ("u1", "|u1"):
        raise UnsafePickle(f"an array of {dtype.code!r}; only unsigned bytes are images")
    return content.encode("latin-1") if isinstance(content, str) else bytes(_expect(content, (bytes, bytearray)))


def _finished(value: Any) -> Any:
    """Make arrays real where the value itself, or the dict that it is, holds one.

    Deeper ones are not looked at, since one dict may be named by thousands of others.
    """
    if isinstance(value, dict):
        return {_text(key): _one(item) for key, item in value.items()}
    return _one(value)


def _one(value: Any) -> Any:
    if isinstance(value, _Array):
        return _pixels(value)
    if value is _MARK or isinstance(value, (_Global, _Dtype)):
        raise UnsafePickle("a value that is not data")
    return value


def _pixels(array: _Array) -> Pixels:
    shape = _expect(array.shape, tuple)
    if array.content is None or not all(type(side) is int and 0 <= side <= MAX_MEMBER_BYTES for side in shape) or len(shape) > 4:
        raise UnsafePickle(f"an array of shape {shape!r}")
    if math.prod(shape) != len(array.content):
        raise UnsafePickle(f"an array of shape {shape} with {len(array.content)} bytes")
    return np.frombuffer(array.content, np.uint8).reshape(shape)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(_expect(value, str))


def _expect(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise UnsafePickle(f"damaged: a {type(value).__name__} where something else belongs")
    return value
