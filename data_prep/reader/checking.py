"""Check that a file is the manifest of a dataset.

Whoever may write to the cache may have changed it, so every used value is checked by type.
"""

import base64
import re
from typing import Any, Dict

import numpy as np

SCHEMA = "slipway.dataset/1"
SEQUENCES = "slipway.sequences/1"
_SHARD = re.compile(r"shard-[0-9]{5,6}\.lmdb")
MAX_INTEGER = 2**53


def check_manifest(manifest: Any) -> Dict[str, Any]:
    """Return the manifest if the reader can use it. Raises ValueError naming the key that is wrong."""
    if not isinstance(manifest, dict):
        raise ValueError("expected an object, found %s" % ascii(manifest)[:60])
    schema = manifest.get("schema")
    if schema == SEQUENCES:
        return _check_sequences(manifest)
    if schema != SCHEMA:
        raise ValueError("schema %s, this reader knows %s and %s" % (ascii(schema)[:60], SCHEMA, SEQUENCES))
    _need(isinstance(manifest.get("name"), str) and manifest.get("layout") in ("hwc", "caffe"), manifest, "name", "layout")
    _need(_all(manifest.get("classes"), lambda word: isinstance(word, str)), manifest, "classes")
    channels, size = manifest.get("channels"), manifest.get("size")
    _need(_is_count(channels) and channels in (1, 3), manifest, "channels")
    _need("size" in manifest and (size is None or (_all(size, _is_count) and len(size) == 2 and min(size) > 0)), manifest, "size")
    _need(size is None or channels * size[0] * size[1] < 2**31, manifest, "size")  # what a Datum may hold
    for key in ("mean", "std"):
        _need(_all(manifest.get(key), _is_number) and len(manifest[key]) == channels, manifest, key)
    image = manifest.get("mean_image")
    _need(image is None or (size is not None and _is_image(image, channels * size[0] * size[1])), manifest, "mean_image")
    _need(_is_count(manifest.get("bytes")) and _is_count(manifest.get("samples")), manifest, "bytes", "samples")
    _need(_all(manifest.get("shards"), _is_shard), manifest, "shards")
    splits = manifest.get("splits")
    _need(isinstance(splits, dict) and all(_is_split(split, len(manifest["shards"])) for split in splits.values()), manifest, "splits")
    return manifest


def _check_sequences(manifest: Dict[str, Any]) -> Dict[str, Any]:
    _need(isinstance(manifest.get("name"), str), manifest, "name")
    vocabulary, lengths, splits = (manifest.get(key) for key in ("vocabulary", "lengths", "splits"))  # type: Any, Any, Any
    _need(_is_count(vocabulary) and 0 < vocabulary < 2**31, manifest, "vocabulary")
    _need(manifest.get("id_bytes") == (2 if vocabulary < 65536 else 4), manifest, "id_bytes")
    _need(_all(lengths, _is_length) and len(lengths) > 0 and lengths == sorted(lengths), manifest, "lengths")
    _need(_is_count(manifest.get("bytes")) and _is_count(manifest.get("samples")), manifest, "bytes", "samples")
    _need(_all(manifest.get("shards"), lambda shard: _is_shard(shard) and _is_length(shard.get("rows"))), manifest, "shards")
    shards = manifest["shards"]
    _need(all(shard.get("length") in lengths for shard in shards), manifest, "shards")
    _need(isinstance(splits, dict) and all(_is_split(split, len(shards)) for split in splits.values()), manifest, "splits")
    for split in splits.values():
        own = [shards[index]["length"] for index in split["shards"]]
        _need(own == sorted(own), manifest, "splits")
    return manifest


def _need(holds: bool, manifest: Dict[str, Any], *keys: str) -> None:
    if not holds:
        found = ", ".join(ascii(manifest.get(key))[:60] for key in keys)
        raise ValueError("%s: found %s, which no manifest of this version holds" % (" or ".join(keys), found))


def _all(values: Any, holds: Any) -> bool:
    return isinstance(values, list) and all(holds(value) for value in values)


def _is_image(text: Any, count: int) -> bool:
    try:
        pixels = np.frombuffer(base64.b64decode(text, validate=True), "<f4")
    except (TypeError, ValueError):
        return False
    return pixels.size == count and bool(((pixels >= 0) & (pixels <= 255)).all())


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_INTEGER


def _is_length(value: Any) -> bool:
    return _is_count(value) and 1 <= value <= 2**24


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -1e6 < value < 1e6


def _is_shard(shard: Any) -> bool:
    if not isinstance(shard, dict) or not isinstance(shard.get("name"), str):
        return False
    return _SHARD.fullmatch(shard["name"]) is not None and _is_count(shard.get("samples")) and _is_count(shard.get("bytes"))


def _is_split(split: Any, num_shards: int) -> bool:
    if not isinstance(split, dict) or not _is_count(split.get("samples")):
        return False
    return _all(split.get("shards"), lambda index: _is_count(index) and index < num_shards)
