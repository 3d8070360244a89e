"""What a run works with: the multiply-adds of networks that read tokens, by hand."""

from __future__ import annotations

from pathlib import Path

from data_prep.build.dataset import build_dataset
from data_prep.sequences.manifest import SequenceManifest, read_sequence_manifest
from data_prep.spec import parse_spec
from workflow.run.storage.description import macs_by_length, model_for


def manifest(path: Path, **lengths: object) -> SequenceManifest:
    """Of lines of one to eight words."""
    (path / "lines.txt").write_text("".join(f"{'cat ' * (number % 8)}sat\n" for number in range(64)))
    spec = {"source": "text", "path": "lines.txt", "documents": "line", "vocabulary": "words", "shards": 4, **lengths}
    return read_sequence_manifest(path / build_dataset(parse_spec(spec, path), "lines", path, jobs=1).path)


def of_a_token(vocabulary: int, length: int) -> int:
    """gpt2-tiny: in each of 4 blocks queries, keys and values, scores and sums over the sequence, projection, two layers of 512; logits."""
    return 4 * (128 * 384 + 2 * length * 128 + 128 * 128 + 2 * 128 * 512) + 128 * vocabulary


def test_a_token_in_a_longer_bucket_attends_to_more(tmp_path: Path) -> None:
    found = manifest(tmp_path, buckets=[3, 7])
    (short, long) = macs_by_length("gpt2-tiny", found)
    assert short == (3, of_a_token(found.vocabulary, 3))
    assert long == (7, of_a_token(found.vocabulary, 7))
    assert long[1] == model_for("gpt2-tiny", found).macs


def test_where_all_are_equally_long_there_is_nothing_to_tell_apart(tmp_path: Path) -> None:
    assert macs_by_length("gpt2-tiny", manifest(tmp_path, buckets=[7])) == ()
    assert macs_by_length("lenet", None) == ()
