"""Read the strings that stand after the fields of a class, of which schemas and pages of reference are made."""

import ast
import inspect
import re
import textwrap
from itertools import pairwise
from typing import Final

_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)\s]*\)")


def field_docs(part: type) -> dict[str, str]:
    """Return the string after each field of a class and of its bases, in one line, by the field's name; fields without one are absent."""
    found: dict[str, str] = {}
    for one in reversed(part.__mro__):
        if "__annotations__" in vars(one) and hasattr(inspect.getmodule(one), "__file__"):
            found |= _of_one(one)
    return found


def _of_one(part: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0]
    found = {}
    for statement, after in pairwise(body.body if isinstance(body, ast.ClassDef) else []):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def without_links(text: str) -> str:
    """Return a text of Markdown with the words of its links alone, for editors, which do not follow them."""
    return _LINK.sub(r"\1", text)
