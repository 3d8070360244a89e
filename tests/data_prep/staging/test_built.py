"""From a source to a program: built, staged, read; what comes out is what was put in."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_prep.build.dataset import build_dataset
from data_prep.reader import open_dataset, shards
from data_prep.spec import parse_spec
from data_prep.staging import stage

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("encoding", "layout"), [("raw", "hwc"), ("raw", "caffe"), ("jpeg", "hwc")])
def test_a_folder_becomes_batches(tmp_path: Path, encoding: str, layout: str) -> None:
    rows, columns = np.indices((24, 24))
    colours = {"blue": (10, 40, 150), "green": (20, 150, 30), "red": (150, 30, 40)}
    for name, colour in colours.items():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(5):
            pixels = np.clip(np.array(colour) + (rows + columns + number)[:, :, None], 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    spec = parse_spec(
        {"source": "folder", "path": "photos", "encoding": encoding, "layout": layout, "size": 24, "shards": 3, "splits": {"test": 0.2}},
        tmp_path,
    )
    built = build_dataset(spec, "photos", tmp_path / "datasets", jobs=1)
    staged = stage(tmp_path / "datasets" / built.path, tmp_path / "cache")
    dataset = open_dataset(str(staged.root))
    assert dataset.classes == ["blue", "green", "red"]
    labels = []
    for name in dataset.manifest["splits"]:
        split = dataset.split(name)
        split.prefetch(range(len(split)))
        for image, label in (split[index] for index in range(len(split))):
            labels.append(label)
            assert image.shape == (24, 24, 3)
            colour = np.array(list(colours.values())[label])
            assert np.abs(image.astype(int) - colour - (rows + columns + 2)[:, :, None]).max() <= (2 if encoding == "raw" else 8)
    assert sorted(labels) == [0] * 5 + [1] * 5 + [2] * 5
    shards.close_all()
