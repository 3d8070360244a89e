"""What a module imports, names and says, by its syntax. Read once for all tests; the tree itself, of a million values, is not kept."""

import ast
import functools
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Syntax:
    """`imports`: `import a.b` is `a.b`, and `from a.b import c` is `a.b.c`, wherever they stand; `from . import c` stays in its room.
    `attributes`: names behind a dot. `texts`: strings, of f-strings the parts that are given; `docs`: strings that are statements."""

    imports: frozenset[str]
    attributes: frozenset[str]
    texts: tuple[str, ...]
    docs: tuple[str, ...]
    docstring: str


@functools.cache
def syntax(path: Path) -> Syntax:
    tree = ast.parse(path.read_text())
    imports, attributes, docs = set(), set(), []
    texts: dict[ast.Constant, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            attributes.add(node.attr)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                texts[node] = node.value
        elif isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imports |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docs.append(node.value)
    return Syntax(
        imports=frozenset(imports),
        attributes=frozenset(attributes),
        docs=tuple(text for node in docs if (text := texts.pop(node, None)) is not None),
        texts=tuple(texts.values()),
        docstring=ast.get_docstring(tree) or "",
    )
