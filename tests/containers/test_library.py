"""What lies on the path of every run: it is read by the oldest interpreter of images, and needs nothing but that, or its framework."""

import ast
import sys
from pathlib import Path

import pytest

from tests.containers.specs import LIB

FILES = sorted(LIB.rglob("*.py"))
NEEDED = {
    "slipway_huggingface": {"transformers"},
    "slipway_keras": {"keras"},
    "slipway_lightning": {"lightning", "pytorch_lightning"},
    "jax_rank": {"jax"},
    "tf_rank": {"tensorflow"},
    "torch_group": {"torch"},
}
"""What a module imports that only those import who have it: modules for users of a framework, and what ranks of one have alike."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_python_3_6_of_the_standard_library(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text(), feature_version=(3, 6))))
    modules = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module).split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0}
    assert "__future__" not in modules, "annotations came with 3.7"
    ours = {module for module in modules if module.startswith("slipway_")}
    others = NEEDED.get(path.stem, set()) | (set() if path.parent == LIB else {"numpy"})
    assert modules - ours <= sys.stdlib_module_names | others
    assert ours <= ({file.stem for file in FILES if file.parent == LIB} if path.parent == LIB else {"slipway_reader", "slipway_events"})
