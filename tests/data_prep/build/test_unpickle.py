"""The reader of pickles: what CIFAR holds comes through, whatever names code does not."""

import contextlib
import os
import pickle
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from base.process import run
from data_prep.sources.unpickle import MAX_NAMES_BYTES, UnsafePickle, converted, loads

DATA = np.arange(24, dtype=np.uint8).reshape(2, 12)
BATCH = {b"data": DATA, b"labels": [3, 255], b"filenames": [b"a.png", "ü.png"], b"batch_label": b"one", "more": (1.5, None, True, -(2**70))}
PYTHON_2 = (
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05"
    b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    b"U\x06\x01\x02\x03\xff\xfe\xfdtbU\x06labels]q\x06(K\x06K\x09eu."
)


@pytest.mark.parametrize("protocol", range(6))
def test_a_batch_of_any_protocol_is_read(protocol: int) -> None:
    found = loads(pickle.dumps(BATCH, protocol))
    assert np.array_equal(found.pop("data"), DATA)
    assert found == {"labels": [3, 255], "filenames": [b"a.png", "ü.png"], "batch_label": b"one", "more": (1.5, None, True, -(2**70))}


def test_a_batch_written_by_python_2_is_read() -> None:
    found = loads(PYTHON_2)
    assert found["data"].tolist() == [[1, 2, 3], [255, 254, 253]]
    assert found["labels"] == [6, 9]


class _Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.parts = (function, arguments)

    def __reduce__(self) -> Any:
        return self.parts


class _State:
    def __init__(self) -> None:
        self.value = 1


@pytest.mark.parametrize("protocol", range(6))
def test_calls_are_refused_and_do_not_happen(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "called"
    hostile = [
        _Call(os.system, f"touch {mark}"),
        _Call(Path.touch, mark),
        _Call(eval, f"open({str(mark)!r}, 'w')"),
        _Call(__import__, "antigravity"),
        _Call(getattr, "", "join"),
        _Call(np.load, str(mark)),
        _State(),
        BATCH.__class__,
        np.array([_Call(os.system, "true")], dtype=object),
        np.arange(3.0),
        np.asfortranarray(DATA),
        1 + 2j,
    ]
    for value in hostile:
        for wrapped in (value, {b"data": value}, [value]):
            with pytest.raises(UnsafePickle):
                loads(pickle.dumps(wrapped, protocol))
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"N",
        b"cos\nsystem\n.",
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
        b"\x82\x01.",
        b"Pabc\n.",
        b"0.",
        b"(t",
        b"]e.",
        b"h\x05.",
        b"I" + b"9" * 100_000 + b"\n.",
        pickle.dumps([1]),
        b"cnumpy\nndarray\n.",
        b"cnumpy\nndarray\n)R.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cos\nsystem\ntR.",
        b"}(](K\x01tK\x02s.",
        b"\x80\x02" + b"(" * 100_000 + b".",
    ],
)
def test_damaged_pickles_are_refused(content: bytes) -> None:
    with pytest.raises(UnsafePickle):
        loads(content)


def test_a_shape_is_checked_against_the_bytes() -> None:
    with pytest.raises(UnsafePickle, match="shape"):
        loads(PYTHON_2.replace(b"K\x02K\x03\x86", b"K\x02K\x04\x86"))
    with pytest.raises(UnsafePickle, match="shape"):
        loads(PYTHON_2.replace(b"K\x02K\x03\x86", b"J\xff\xff\xff\xffK\x03\x86"))


def test_random_damage_never_does_anything_else() -> None:
    rng = random.Random(3)
    whole = [pickle.dumps(BATCH, protocol) for protocol in range(6)]
    read = 0
    for trial in range(600):
        content = bytearray(whole[trial % 6])
        for _ in range(rng.randint(1, 4)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        with contextlib.suppress(UnsafePickle):
            loads(bytes(content))
            read += 1
    assert 0 < read < 600, "some of it is read, and some refused"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("content", "end"),
    [
        (b"\x80\x02}" + b")" + b"2\x86" * 60 + b"K\x01s.", -signal.SIGKILL),
        (b"\x80\x02}(" + b")" + b"\x85" * 3_000_000 + b"K\x01u.", -signal.SIGSEGV),
        (b"\x80\x02}X\x04\x00\x00\x00dataX\x00\x00\x10\x00" + b"x" * (1 << 20) + b"q\x00"
         + b"0](" + b"c_codecs\nencode\nh\x00U\x06latin1\x86R" * 900 + b"es.", 0),
    ],
    ids=["keys that take 2^60 steps to hash", "keys that are too deep to hash", "bytes that are copied again and again"],
)  # fmt: skip
def test_what_takes_more_than_a_batch_ends_its_reader_alone(content: bytes, end: int, tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(content)
    seconds = 2 if end == -signal.SIGKILL else 60  # the others end by their stack and their memory, however slow the machine is
    script = (
        f"import sys; from data_prep import limits; limits.UNPICKLE_CPU_S = {seconds}; from data_prep.sources import unpickle as it; "
        "sys.exit(it.main(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", script, str(path), "0", str(len(content)), str(tmp_path / "records")]
    found = run(argv, timeout_s=60)
    assert found.returncode == end, found
    assert end or "MemoryError" in found.stdout


def test_names_of_classes_are_no_longer_than_a_text_file_of_them_may_be(tmp_path: Path) -> None:
    """A pickle says a long word once and then names it as often as it likes."""
    word = "w" * (MAX_NAMES_BYTES // 2)
    assert converted(pickle.dumps({"label_names": [word] * 2}), tmp_path / "records") == {"names": [word] * 2}
    assert "more than" in converted(pickle.dumps({"label_names": [word] * 3}), tmp_path / "records")["error"]
