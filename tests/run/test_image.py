"""The rule `image`: what a study's cells need, pinned and archived; by a stand-in of apptainer, whose images are files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from base.errors import ContainerError
from containers.frameworks import load_framework
from containers.images.model import read_manifest
from workflow.run.image import check_nodes, load_argv, prepare, references

CELLS = [{"framework": "pytorch", "device": device, "model": "lenet"} for device in ("site", "cpu")]


def content(tmp_path: Path, engine: str, **images: str) -> dict[str, Any]:
    return {"site": {"engine": engine, "storage": str(tmp_path), "device": "cpu", "images": images}, "cells": CELLS}


@pytest.fixture
def apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\ncase "$*" in exec*broken.sif*) exit 127 ;; esac\necho slipway 3 11\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_the_sites_image_comes_before_the_frameworks_own(tmp_path: Path) -> None:
    assert references(content(tmp_path, "docker")) == {"pytorch": (load_framework("pytorch").image, "python3")}
    assert references(content(tmp_path, "docker", pytorch="site/torch:1")) == {"pytorch": ("site/torch:1", "python3")}


def test_the_bare_engine_needs_no_image(tmp_path: Path) -> None:
    assert prepare(content(tmp_path, "bare")) == {"engine": "bare", "images": {}}


@pytest.mark.usefixtures("apptainer")
def test_each_framework_is_archived_once_and_named_by_content(tmp_path: Path) -> None:
    (tmp_path / "torch.sif").write_bytes(b"squashfs")
    found = prepare(content(tmp_path, "apptainer", pytorch=str(tmp_path / "torch.sif")))
    entry = found["images"]["pytorch"]
    assert json.loads(json.dumps(found)) == found
    assert read_manifest(Path(entry["archive"])).image.image_id == entry["image"]["image_id"]
    check_nodes(entry, {"n1": entry["image"]["image_id"]})
    with pytest.raises(ContainerError, match="n2: no image"):
        check_nodes(entry, {"n1": entry["image"]["image_id"], "n2": ""})


@pytest.mark.usefixtures("apptainer")
def test_an_image_that_cannot_run_us_is_not_archived(tmp_path: Path) -> None:
    (tmp_path / "broken.sif").write_bytes(b"squashfs")
    with pytest.raises(ContainerError, match="cannot run our programs"):
        prepare(content(tmp_path, "apptainer", pytorch=str(tmp_path / "broken.sif")))
    assert not (tmp_path / "images").exists()


def test_what_a_node_runs(tmp_path: Path) -> None:
    argv = load_argv("py", "/s/images/x.tar.zst", "docker", "/local")
    assert argv == (
        "py",
        "-P",
        "-m",
        "containers.images",
        "load",
        "--engine",
        "docker",
        "--archive",
        "/s/images/x.tar.zst",
        "--cache",
        "/local",
    )
    assert load_argv("py", "a", "docker", "/local", may_pull=True)[-1] == "--may-pull"
