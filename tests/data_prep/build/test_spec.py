"""The specification of a dataset: completed, checked, named by a digest."""

from pathlib import Path
from typing import Any

import pytest

from base.errors import ConfigError
from data_prep.spec import DatasetSpec, parse_spec, spec12, spec_digest

BASE = Path("/studies")


def test_defaults_depend_on_the_source() -> None:
    folder = parse_spec({"source": "folder", "path": "photos"}, BASE)
    digits = parse_spec({"source": "sklearn-digits"}, BASE)
    caffe = parse_spec({"source": "caffe-lmdb", "path": "/db"}, BASE)
    made = parse_spec({"source": "synthetic"}, BASE)
    assert (folder.path, folder.encoding, folder.channels, folder.layout, folder.size) == ("/studies/photos", "raw", "rgb", "hwc", None)
    assert (digits.channels, digits.size) == ("grey", None)
    assert (caffe.encoding, caffe.channels, caffe.layout) == (None, None, "caffe")
    assert (made.samples, made.classes, made.seed, made.size) == (1024, 10, 0, (32, 32))


def test_a_resolved_specification_survives_json_and_keeps_its_digest() -> None:
    spec = parse_spec({"source": "list", "path": "a.txt", "size": [4, 6], "splits": {"test": {"path": "b.txt"}, "validation": 0.1}}, BASE)
    again = DatasetSpec.model_validate(spec.to_json())
    assert again == spec
    assert spec.split_paths == {"test": "/studies/b.txt"}
    assert spec_digest(spec) == spec_digest(spec.to_json()) == spec_digest(again)
    assert spec12(spec) == spec_digest(spec)[:12]


def test_check_and_statistics_have_defaults_that_change_no_digest() -> None:
    kept = {"source": "folder", "path": "p", "encoding": "jpeg"}
    for values, expected in (
        (kept, ("header", "sample")),
        ({**kept, "encoding": "raw"}, ("decode", "sample")),
        ({**kept, "check": "decode"}, ("decode", "sample")),
        ({**kept, "statistics": "all"}, ("decode", "all")),
        ({**kept, "size": 8, "mean_image": True}, ("decode", "all")),
        ({"source": "caffe-lmdb", "path": "p"}, ("header", "sample")),
    ):
        spec = parse_spec(values, BASE)
        assert (spec.check, spec.statistics) == expected
        assert DatasetSpec.model_validate(spec.to_json()) == spec
    plain = spec12(parse_spec(kept, BASE))
    assert plain == "7ff572dba07e"  # as before there were these keys: the datasets that are built are found
    assert spec12(parse_spec({**kept, "check": "header", "statistics": "sample"}, BASE)) == plain
    assert len({plain, *(spec12(parse_spec({**kept, **more}, BASE)) for more in ({"check": "decode"}, {"statistics": "all"}))}) == 3


def test_the_path_is_part_of_the_digest() -> None:
    one, other = (parse_spec({"source": "folder", "path": path}, BASE) for path in ("a", "b"))
    assert spec12(one) != spec12(other)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"source": "folder"}, "needs a path"),
        ({"source": "synthetic", "path": "x"}, "has no path"),
        ({"source": "sklearn-digits", "seed": 1}, "synthetic only"),
        ({"source": "synthetic", "size": True}, "not a size"),
        ({"source": "synthetic", "size": 0}, "not a size"),
        ({"source": "synthetic", "size": [1, 2, 3]}, "not a size"),
        ({"source": "synthetic", "size": 10**6}, "8192"),
        ({"source": "synthetic", "splits": {"test": 1.0}}, "less than 1"),
        ({"source": "synthetic", "splits": {"test": 0.5, "validation": 0.5}}, "add up to 1"),
        ({"source": "synthetic", "splits": {"../x": 0.5}}, "not a valid name"),
        ({"source": "synthetic", "splits": {"train": 0.5}}, "train is what the others leave"),
        ({"source": "folder", "path": "b", "splits": {"train": {"path": "a"}}}, "train is what the others leave; give path"),
        ({"source": "synthetic", "splits": {"test": {"path": "x"}}}, "give a fraction"),
        ({"source": "synthetic", "shards": 0}, "greater than or equal to 1"),
        ({"source": "synthetic", "shards": 1}, "too few"),
        ({"source": "synthetic", "samples": 3, "classes": 4}, "fewer than classes"),
        ({"source": "folder", "path": "x", "encoding": "jpeg", "layout": "caffe"}, "raw pixels"),
        ({"source": "folder", "path": "x", "per_class": {"min": 3, "max": 2}}, "less than min"),
        ({"source": "folder", "path": "a\nb"}, "control character"),
        ({"source": "folder", "path": "x", "encoding": "jpeg", "check": "header", "statistics": "all"}, "needs every image decoded"),
        ({"source": "folder", "path": "x", "size": 8, "mean_image": True, "statistics": "sample"}, "all images of train"),
        (
            {"source": "folder", "path": "x", "size": 8, "encoding": "jpeg", "mean_image": True, "check": "header"},
            "mean_image: true needs every image decoded",
        ),
        ({"source": "folder", "path": "x", "check": "header"}, "of raw pixels every image is decoded"),
        ({"source": "folder", "path": "x", "check": "all"}, "header"),
        ({"source": "files", "path": "x", "check": "decode"}, "leave it out"),
        ({"source": "nonsense"}, "folder"),
        ({"source": "synthetic", "sise": 3}, "sise"),
        ([], "dataset"),
        (None, "dataset"),
    ],
)
def test_what_is_wrong_is_named(values: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_spec(values, BASE)
