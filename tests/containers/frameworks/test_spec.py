"""YAML of others: plain values within bounds, or an error that names file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from base.errors import ConfigError
from containers.frameworks.spec import parse_yaml, read_framework

LAUGHS = "a: &a [x, x]\n" + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(12))


def test_plain_values() -> None:
    assert parse_yaml(b"a: [1, x]\nb: {c: true}\n", "f", ConfigError) == {"a": [1, "x"], "b": {"c": True}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LAUGHS.encode(), r"line 2: \*a stands for another part"),
        (b"[" * 40 + b"]" * 40, "nested more than 32 deep"),
        (b"[" * 50_000, "nested more than 32 deep"),
        (b"a: 2026-99-99", "is not valid YAML"),
        (b"a: " + b"9" * 5000, "is not valid YAML"),
        (b"\xff\xfe\x00", "is not valid YAML"),
        (b"a: !!python/object/apply:os.system [x]", "is not valid YAML"),
    ],
)
def test_what_is_none_is_named(content: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^f.*{message}"):
        parse_yaml(content, "f", ConfigError)


def test_a_framework_with_aliases_is_refused(tmp_path: Path) -> None:
    (tmp_path / "framework.yaml").write_text(LAUGHS)
    with pytest.raises(ConfigError, match=r"framework\.yaml: line 2: "):
        read_framework(tmp_path / "framework.yaml")
