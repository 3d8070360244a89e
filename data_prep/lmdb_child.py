"""A process that reads an LMDB file of unknown origin, since a damaged one kills its reader with SIGBUS instead of raising an error.

`python -m data_prep.lmdb_child PATH scan` writes one JSON line per entry: {"key", "bytes", "channels", "height", "width", "label",
"encoded", "head"}, or {"key", "reason"}; keys as latin-1, head as hex. `... serve` reads frames of (length, key) from stdin and answers
each with (length, value); the length is ABSENT for no such key.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from typing import Any, BinaryIO

import lmdb

from data_prep.image_header import SNIFF_BYTES
from data_prep.reader.datum import parse
from data_prep.reader.errors import DatumError

ABSENT = 0xFFFFFFFF
LENGTH = struct.Struct("<I")


def main(argv: list[str]) -> int:
    """Serve one file until stdin ends."""
    path, mode = argv
    try:
        with (
            lmdb.open(path, subdir=os.path.isdir(path), readonly=True, lock=False, create=False, lib_version=0) as environment,
            environment.begin(buffers=True) as transaction,
        ):
            if mode == "scan":
                _scan(transaction, sys.stdout.buffer)
            else:
                _serve(transaction, sys.stdin.buffer, sys.stdout.buffer)
    except lmdb.Error as error:
        sys.stderr.write(f"{error}\n")
        return 3
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 4
    return 0


def _scan(transaction: Any, out: BinaryIO) -> None:
    for key, value in transaction.cursor():
        out.write(json.dumps(_entry(key, value)).encode() + b"\n")
    out.flush()


def _entry(key: memoryview, value: memoryview) -> dict[str, Any]:
    name = bytes(key).decode("latin-1")
    try:
        datum = parse(value)
    except DatumError as error:
        return {"key": name, "reason": f"no Datum of an image: {error}"}
    shape = {"channels": datum.channels, "height": datum.height, "width": datum.width}
    head = bytes(datum.data[:SNIFF_BYTES]).hex()
    return {"key": name, "bytes": len(value), **shape, "label": datum.label, "encoded": datum.encoded, "head": head}


def _serve(transaction: Any, requests: BinaryIO, out: BinaryIO) -> None:
    while head := requests.read(LENGTH.size):
        value = transaction.get(requests.read(LENGTH.unpack(head)[0]))
        if value is None:
            out.write(LENGTH.pack(ABSENT))
        else:
            out.write(LENGTH.pack(len(value)))
            out.write(value)
        out.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
