"""What every source of images must keep to; a new one is a line in SOURCES and is tested here."""

from pathlib import Path
from typing import get_args

import pytest

from base.errors import DatasetError
from data_prep.sources import SOURCES, source_of
from data_prep.sources.types import Root, Source
from data_prep.spec import OTHER_KEYS, WITHOUT_PATH, SourceKind, parse_spec

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "datasets.md"


@pytest.fixture(params=SOURCES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_words_of_the_study_file_are_the_sources() -> None:
    assert set(get_args(SourceKind)) == {*SOURCES, *OTHER_KEYS}


def test_it_has_a_specification_and_a_place_in_the_guide(kind: str, tmp_path: Path) -> None:
    made = {"source": kind} if kind in WITHOUT_PATH else {"source": kind, "path": "photos"}
    assert parse_spec(made, tmp_path).source == kind
    assert f"`{kind}`" in DOCS.read_text()


def test_where_nothing_is_it_knows_no_number_and_says_what_is_missing(kind: str, tmp_path: Path) -> None:
    source, root = source_of(kind), Root(path=tmp_path / "nowhere", scratch=tmp_path / "scratch")
    if kind in WITHOUT_PATH:
        return
    with pytest.raises(DatasetError, match="nowhere"):
        listed(source, root)


def listed(source: Source, root: Root) -> None:
    for _ in source.scan(root, source.prepare(root)):
        pass
