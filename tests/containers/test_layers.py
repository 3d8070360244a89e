"""Images that `docker save` has written, unpacked by an ordinary user."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from base.errors import ContainerError
from containers.images.layers import unpack

Entry = tuple[str, str | None | dict[str, object]]
"""A name, and its text; None: a directory; else fields of the entry."""


def layer(*entries: Entry) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, what in entries:
            info, content = tarfile.TarInfo(name), b""
            if what is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o555
            elif isinstance(what, dict):
                for field, value in what.items():
                    setattr(info, field, value)
            else:
                content, info.mode = what.encode(), 0
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def saved(path: Path, *layers: bytes, environment: list[str] | None = None) -> Path:
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    described = {"manifest.json": [{"Config": "c.json", "Layers": names, "RepoTags": None}], "c.json": {"config": {"Env": environment}}}
    with tarfile.open(path, "w") as tar:
        for name, content in [*((name, json.dumps(value).encode()) for name, value in described.items()), *zip(names, layers, strict=True)]:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_layers_lie_one_upon_the_other(tmp_path: Path) -> None:
    link: Entry = ("lib", {"type": tarfile.SYMTYPE, "linkname": "bin"})
    device: Entry = ("dev/null", {"type": tarfile.CHRTYPE})
    below = layer(("bin", None), ("bin/sh", "old"), ("bin/gone", "x"), ("data", None), ("data/a", "x"), link)
    above = layer(("bin/sh", "new"), ("bin/.wh.gone", ""), ("data/.wh..wh..opq", ""), ("data/b", "y"), ("lib", None), device)
    archive = saved(tmp_path / "image.tar", below, above, environment=["PATH=/usr/bin:/bin", "TWO=a\nb"])
    root = tmp_path / "root"
    unpack(archive, root)
    found = {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}
    assert found == {"bin/sh": "new", "data/b": "y", "etc/environment": "PATH=/usr/bin:/bin\n"}


@pytest.mark.parametrize("above", [{"type": tarfile.SYMTYPE, "linkname": "/usr/bin/vim"}, "text", None])
def test_a_link_to_a_place_in_the_image_is_replaced_as_in_every_second_image_of_debian(
    tmp_path: Path, above: str | None | dict[str, object]
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    link = {"type": tarfile.SYMTYPE, "linkname": str(victim)}
    root = tmp_path / "root"
    unpack(saved(tmp_path / "image.tar", layer(("etc", None), ("etc/editor", link)), layer(("etc/editor", above))), root)
    found = root / "etc" / "editor"
    if above is None:
        assert found.is_dir()
    elif above == "text":
        assert found.read_text() == "text"
    else:
        assert str(found.readlink()) == "/usr/bin/vim"
    assert victim.is_dir()
    assert not victim.is_symlink()


@pytest.mark.parametrize(
    "entry",
    [
        ("../outside", "x"),
        ("../.wh.victim", ""),
        ("way/victim", "x"),
        ("way/.wh.victim", ""),
        ("way/.wh..wh..opq", ""),
        ("mine", {"type": tarfile.LNKTYPE, "linkname": "way/victim"}),
        ("mine", {"type": tarfile.LNKTYPE, "linkname": "../victim"}),
    ],
)
def test_nothing_outside_is_written_or_removed(tmp_path: Path, entry: Entry) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    way = ("way", {"type": tarfile.SYMTYPE, "linkname": str(tmp_path)})
    with pytest.raises(ContainerError, match="cannot be unpacked: .*outside the destination"):
        unpack(saved(tmp_path / "image.tar", layer(way, entry)), tmp_path / "root")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "outside").exists()


def test_nothing_is_written_through_a_link_in_the_place_of_etc(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "environment").write_text("mine")
    link = {"type": tarfile.SYMTYPE, "linkname": str(outside)}
    with pytest.raises(ContainerError, match="outside the destination"):
        unpack(saved(tmp_path / "image.tar", layer(("etc", link))), tmp_path / "root")
    assert (outside / "environment").read_text() == "mine"


@pytest.mark.parametrize(
    "entries", [(("a/x", "t"),), (("h", {"type": tarfile.LNKTYPE, "linkname": "a/x"}),), (("", "t"),), (("etc", "t"),)]
)
def test_an_image_that_cannot_be_is_refused_in_words(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    """Links that lead to each other; a file in the place of the whole, or of /etc."""
    loop = tuple((name, {"type": tarfile.SYMTYPE, "linkname": other}) for name, other in (("a", "b"), ("b", "a")))
    with pytest.raises(ContainerError, match="cannot be unpacked"):
        unpack(saved(tmp_path / "image.tar", layer(*loop, *entries)), tmp_path / "root")


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_text("no")
    with pytest.raises(ContainerError, match=r"image.tar is not an image that `docker save` has written"):
        unpack(tmp_path / "image.tar", tmp_path / "root")
