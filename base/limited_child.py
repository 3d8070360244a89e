"""`python -m base.limited_child MODULE FUNCTION`: a child of base.limited with an interpreter of its own. The arguments, JSON, are its
standard input."""

from __future__ import annotations

import importlib
import sys

from base.jsonfile import parse_json
from base.limited import ANSWER_FD, answer


def main(module: str, name: str) -> None:
    """Call the function, and end."""

    def call() -> object:
        arguments = parse_json(sys.stdin.buffer.read(), "the arguments")
        return getattr(importlib.import_module(module), name)(*arguments)

    answer(ANSWER_FD, call, ())


if __name__ == "__main__":
    main(*sys.argv[1:])
