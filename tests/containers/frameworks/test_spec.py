"""YAML of a framework: plain values, or an error that names the file."""

from pathlib import Path

import pytest

from base.errors import ConfigError
from containers.frameworks.spec import parse_yaml


def test_plain_values() -> None:
    assert parse_yaml(b"a: [1, x]\nb: {c: true}\n", Path("f")) == {"a": [1, "x"], "b": {"c": True}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 2026-99-99", "is not valid YAML"),
        (b"a: " + b"9" * 5000, "is not valid YAML"),
        (b"\xff\xfe\x00", "is not valid YAML"),
        (b"a: !!python/object/apply:os.system [x]", "is not valid YAML"),
    ],
)
def test_what_is_none_is_named(content: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^f.*{message}"):
        parse_yaml(content, Path("f"))
