"""What a run works with: the multiply-adds of networks that read tokens, by hand."""

import os
from pathlib import Path

import pytest

from base.errors import ConfigError, StagingError, StorageError
from containers.program_folder import look_at
from data_prep.build.dataset import build_dataset
from data_prep.sequences.manifest import SequenceManifest, read_sequence_manifest
from data_prep.spec import parse_spec
from tests.workflow.run.cells import document
from workflow.run.plan import Framework, taken_along
from workflow.run.storage.description import DEAD_S, keep_program, macs_by_length, model_for


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
    assert long[1] == model_for(document(model="gpt2-tiny"), found).macs


def test_where_all_are_equally_long_there_is_nothing_to_tell_apart(tmp_path: Path) -> None:
    assert macs_by_length("gpt2-tiny", manifest(tmp_path, buckets=[7])) == ()
    assert macs_by_length("lenet", None) == ()


# The files of a program are kept beside the results, one whole copy of each state.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "train"
    (path / "net").mkdir(parents=True)
    (path / "train.py").write_text("print(1)\n")
    (path / "net" / "run.sh").write_text("#!/bin/sh\n")
    (path / "net" / "run.sh").chmod(0o755)
    return path


def described(folder: Path) -> Framework:
    return taken_along(Framework(name="gpt", own=True, folder=str(folder), launcher="ranks", command=("true",)))


def test_a_folder_with_a_link_is_not_taken_along(folder: Path) -> None:
    (folder / "data").symlink_to("/nowhere")
    with pytest.raises(ConfigError, match="train/data is a link, and only files are taken along"):
        described(folder)


def test_each_state_of_a_folder_is_kept_once_and_whole(folder: Path, tmp_path: Path) -> None:
    results, first = tmp_path / "results", described(folder)
    keep_program(results, first)
    keep_program(results, first)
    (folder / "train.py").write_text("print(2)\n")
    second = described(folder)
    keep_program(results, second)
    kept = {path.name: look_at(path).digest for path in (results / "programs").iterdir()}
    assert kept == {framework.digest: framework.digest for framework in (first, second)}


def test_what_changes_meanwhile_is_not_kept_under_a_wrong_name(folder: Path, tmp_path: Path) -> None:
    before = described(folder)
    (folder / "train.py").write_text("print(2)\n")
    with pytest.raises(StagingError, match="has changed since the run began"):
        keep_program(tmp_path, before)
    assert list((tmp_path / "programs").iterdir()) == []


def test_where_nothing_can_be_written_the_error_says_what_for_and_where(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "programs").write_text("")
    with pytest.raises(StorageError, match=r"the files of the program 'gpt' are kept beside the results, and .*/programs cannot be"):
        keep_program(tmp_path, described(folder))


def test_what_a_killed_supervisor_left_goes_and_what_another_one_writes_stays(folder: Path, tmp_path: Path) -> None:
    for name, age_s in (("dead", 2 * DEAD_S), ("alive", 0.0)):
        part = tmp_path / "programs" / f".{'a' * 64}.part-{name}"
        part.mkdir(parents=True)
        now = part.stat().st_mtime
        os.utime(part, (now - age_s, now - age_s))
    keep_program(tmp_path, described(folder))
    assert [path.name for path in (tmp_path / "programs").glob(".*")] == [f".{'a' * 64}.part-alive"]


def test_a_program_without_a_folder_leaves_nothing(tmp_path: Path) -> None:
    keep_program(tmp_path, taken_along(Framework(name="gpt", own=True, folder="", launcher="ranks", command=("true",))))
    assert list(tmp_path.iterdir()) == []
