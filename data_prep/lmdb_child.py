"""Read LMDB files of unknown origin in a process of its own, since a damaged one kills its reader with SIGBUS instead of an error.

`python -m data_prep.lmdb_child datum PATH` writes one JSON line per entry: {"key", "bytes", "channels", "height", "width", "label",
"head"}, or {"key", "reason"}; keys as latin-1, the head of an image file as hex, null of pixels. `... image PATH`: {"key", "bytes",
"head"}, of values that are image files. `... serve PATH...` reads frames of (number of the file, length, key) from stdin and answers each
with (length, value); the length is ABSENT for no such key.
"""

import contextlib
import json
import os
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import lmdb

from data_prep import free_space, image_header
from data_prep.reader.datum import parse
from data_prep.reader.errors import DatumError

ABSENT = 0xFFFFFFFF
LENGTH = struct.Struct("<I")
FRAME = struct.Struct("<II")


def main(argv: list[str]) -> int:
    """Serve the files until stdin ends."""
    mode, *paths = argv
    free_space.limit_own_memory()
    try:
        with contextlib.ExitStack() as stack:
            transactions = [stack.enter_context(_opened(stack, path)) for path in paths]
            if mode == "serve":
                _serve(transactions, sys.stdin.buffer, sys.stdout.buffer)
            else:
                _scan(transactions[0], SCANS[mode], sys.stdout.buffer)
    except lmdb.Error as error:
        sys.stderr.write(f"{error}\n")
        return 3
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 4
    return 0


Entry = dict[str, str | int | bool | None]
"""The description of an entry, for JSON."""


def _opened(stack: contextlib.ExitStack, path: str) -> Any:
    environment = lmdb.open(path, subdir=os.path.isdir(path), readonly=True, lock=False, create=False, lib_version=0)
    return stack.enter_context(environment).begin(buffers=True)


def _scan(transaction: Any, describe: Callable[[memoryview], Entry], out: BinaryIO) -> None:
    last = None
    for key, value in transaction.cursor():
        content = bytes(key)
        if last is not None and content <= last:  # of two entries with one key `serve` would find either, with the label of the other
            raise lmdb.CorruptedError(f"key {content!r} comes after {last!r}")
        last = content
        out.write(json.dumps({"key": content.decode("latin-1"), **describe(value)}).encode() + b"\n")
    out.flush()


def _datum(value: memoryview) -> Entry:
    try:
        datum = parse(value)
    except DatumError as error:
        return {"reason": f"no Datum of an image: {error}"}
    shape = {"channels": datum.channels, "height": datum.height, "width": datum.width}
    head = bytes(datum.data[: image_header.SNIFF_BYTES]).hex() if datum.encoded else None
    return {"bytes": len(value), **shape, "label": datum.label, "head": head}


def _image(value: memoryview) -> Entry:
    return {"bytes": len(value), "head": bytes(value[: image_header.SNIFF_BYTES]).hex()}


SCANS = {"datum": _datum, "image": _image}


def _serve(transactions: Sequence[Any], requests: BinaryIO, out: BinaryIO) -> None:
    while head := requests.read(FRAME.size):
        number, length = FRAME.unpack(head)
        value = transactions[number].get(requests.read(length))
        if value is None:
            out.write(LENGTH.pack(ABSENT))
        else:
            out.write(LENGTH.pack(len(value)))
            out.write(value)
        out.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
