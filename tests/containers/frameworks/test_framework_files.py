"""The contract of every framework folder, and the errors of framework.yaml."""

import ast
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

import containers.frameworks
from base.errors import ConfigError, UnsupportedRequest
from containers.frameworks import HISTORIC_IN_CHECKOUT, NAMES, SUPPORTED, check_supports, framework_folders, load_framework
from containers.frameworks.own_python import BESIDE
from containers.frameworks.spec import Augmentation, FrameworkSpec, parse_framework
from containers.models import MODELS, of_tokens
from containers.rank_variables import fill

FOLDER = Path(containers.frameworks.__file__).parent
ROOT = Path(__file__).parents[3]
PATH = FOLDER / "pytorch" / "framework.yaml"


def document() -> dict[str, Any]:
    loaded = yaml.safe_load(PATH.read_text())
    assert isinstance(loaded, dict)
    return loaded


def words_of(spec: FrameworkSpec, python: str, folder: str) -> tuple[str, ...]:
    return tuple(fill(word, {"python": python, "folder": folder}) for word in spec.command)


def imports(path: Path) -> set[str]:
    """First words of what a module imports absolutely."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).split(".")[0])
    return found


def test_every_folder_is_listed() -> None:
    folders = {path.parent.name: path.parent for place in (FOLDER, HISTORIC_IN_CHECKOUT) for path in place.glob("*/framework.yaml")}
    assert framework_folders() == folders
    assert set(NAMES) == set(folders)


def test_another_distribution_brings_frameworks_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, metadata = tmp_path / "brought_here", tmp_path / "brought-1.dist-info"
    (package / "mine").mkdir(parents=True)
    metadata.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mine" / "framework.yaml").write_text(yaml.safe_dump({**document(), "name": "mine"}))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[slipway.frameworks]\nbrought = brought_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = containers.frameworks.framework_folders.__wrapped__()
    assert found["mine"] == package / "mine"
    assert set(found) == {*framework_folders(), "mine"}


@pytest.fixture(params=framework_folders())
def spec(request: pytest.FixtureRequest) -> FrameworkSpec:
    return load_framework(request.param)


def test_the_folder_is_complete(spec: FrameworkSpec) -> None:
    assert (spec.folder / "Dockerfile").is_file()
    words = words_of(spec, "python3", str(spec.folder))
    programs = re.findall(rf"{re.escape(str(spec.folder))}/[\w.]+", " ".join(words))
    if words[1:3] in (("-m", "slipway_program"), ("-m", "slipway_historic_program.theano_flags")):
        module, name = words[-1].split(":")
        program = spec.folder / f"{module.replace('.', '/')}.py"
        assert re.search(rf"^(class|def) {name}\(", program.read_text(), re.MULTILINE)
        programs.append(str(program))
    assert programs
    assert all(Path(program).is_file() for program in programs)
    assert all(folder.is_dir() for folder in spec.library_folders)
    if spec.environment is not None:
        assert (spec.folder / spec.environment.pins).is_file()
        assert spec.environment.installer is None or (spec.folder / spec.environment.installer).is_file()


def test_its_programs_compile_and_import_only_what_they_may(spec: FrameworkSpec) -> None:
    packages = {re.split(r"[=<>!~ \[]", requirement)[0] for requirement in spec.packages}
    beside = {path.stem for path in spec.folder.iterdir() if path.is_dir() or path.suffix == ".py"}
    for path in spec.folder.rglob("*.py"):
        library = {folder.name for folder in spec.library_folders}
        ours = {"slipway_reader", "slipway_program", "slipway_events", "slipway_parts", "slipway_profile"}
        allowed = set(sys.stdlib_module_names) | packages | beside | library | ours | {"numpy"}
        assert imports(path) <= allowed, f"{path} imports {imports(path) - allowed}"


def test_its_programs_are_in_the_words_of_its_python(spec: FrameworkSpec) -> None:
    if spec.python_version is None:
        return
    minor = int(spec.python_version.removeprefix("3."))
    for path in spec.folder.rglob("*.py"):
        ast.parse(path.read_text(), str(path), feature_version=(3, minor))
        assert minor >= 7 or "from __future__ import annotations" not in path.read_text(), f"{path}: Python 3.6 has no such future"


def test_nothing_beside_the_program_hides_a_package(spec: FrameworkSpec) -> None:
    beside = {path.stem for path in spec.folder.iterdir() if path.is_dir() or path.suffix == ".py"} - {"program", "__init__", "__pycache__"}
    assert all(name.startswith("slipway_") for name in beside), beside


def test_its_environment_is_pinned(spec: FrameworkSpec) -> None:
    """What is installed for the bare engine, what the image installs, and what framework.yaml says are one version."""
    pins, packages = spec.folder / "requirements.txt", spec.folder / "debian-packages.txt"
    exact = [package for package in spec.packages if "==" in package]
    assert exact
    for package in exact:
        name, version = package.split("==")
        assert re.search(rf"{name}[^\n]*==?{version}", (spec.folder / "Dockerfile").read_text())
        if pins.is_file():
            assert re.search(rf"^{package} \\$", pins.read_text(), re.MULTILINE), package
            assert "--hash=sha256:" in pins.read_text()
        if packages.is_file():
            assert re.search(rf"/python3-{name}_{version}[^/\n]*\.deb [0-9a-f]{{64}}$", packages.read_text(), re.MULTILINE), package
    for beside in (one for one in BESIDE.values() if one.backend != "auto" and one.framework == spec.name):
        assert re.search(rf"^{exact[0]} \\$", (spec.folder / beside.pins).read_text(), re.MULTILINE)
    assert spec.image.endswith(f":{exact[0].split('==')[1]}")


def test_it_supports_models_that_exist(spec: FrameworkSpec) -> None:
    assert set(spec.supports.models) <= set(MODELS)
    assert spec.supports.modes
    assert spec.supports.precision
    for words in (spec.supports.cuda_only, spec.supports.cpu_only):
        for field in fields(words):
            assert set(getattr(words, field.name)) <= set(getattr(spec.supports, field.name))


WITH_REASONS = ("mode", "model", "precision", "augmentation", "device")
"""Keys of a cell by which frameworks differ in what somebody could have built; in others each has words of its own."""


def words_for(key: str, spec: FrameworkSpec) -> set[str]:
    return set(getattr(spec.supports, SUPPORTED[key]))


def test_what_others_support_and_it_does_not_has_a_reason(spec: FrameworkSpec) -> None:
    """And nothing else has one."""
    known = {word for key in WITH_REASONS for name in framework_folders() for word in words_for(key, load_framework(name))} | set(MODELS)
    assert set(spec.why) == known - {word for key in WITH_REASONS for word in words_for(key, spec)}
    assert len(spec.why) == sum(len(one.words) for one in spec.missing)


def names_imported(path: Path, module: str) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text(), str(path)))
    return {alias.name for node in nodes if isinstance(node, ast.ImportFrom) and node.module == module for alias in node.names}


def test_whoever_trains_on_what_slipway_reads_has_images_that_are_augmented(spec: FrameworkSpec) -> None:
    """slipway_program's plan does it, for those that its driver runs."""
    driven = any("run" in names_imported(path, "slipway_program.driver") for path in spec.folder.rglob("*.py"))
    if driven or {"slipway_program", "slipway_historic_program.theano_flags"} & set(spec.command):
        assert spec.supports.augmentation == get_args(Augmentation)
    else:
        assert spec.name in ("pytorch", "bigdl"), "it reads by itself: say here that it does"


def test_its_facts_name_a_test_that_is_there(spec: FrameworkSpec) -> None:
    assert spec.facts is not None, "slipway tables framework-facts needs a row"
    if spec.facts.verified is not None:
        assert all((ROOT / name).is_file() for name in spec.facts.verified.by.split(", "))
        assert set(spec.facts.verified.devices) <= set(spec.supports.devices)


def test_its_facts_tell_all_that_tests_hold(spec: FrameworkSpec) -> None:
    assert spec.facts is not None
    verified = spec.facts.verified
    assert verified is not None, "each is run by a test of ours"
    assert ("test_token_models.py" in verified.by) == bool(set(spec.supports.models) & set(of_tokens()))
    assert ("test_native_readers.py" in verified.by) == ("native" in spec.supports.readers) == bool(verified.lmdb)
    assert ("test_pytorch_strategies.py" in verified.by) == (len(spec.supports.strategies) > 1)
    for strategy in spec.supports.strategies if len(spec.supports.strategies) > 1 else ():
        assert {"ddp": "DistributedDataParallel", "fsdp2": "FSDP2", "horovod": "Horovod"}[strategy] in str(verified.data_parallel)


def test_an_unknown_framework_gets_the_closest_one() -> None:
    with pytest.raises(ConfigError, match="'pytoch' is not known.*did you mean 'pytorch'"):
        load_framework("pytoch")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"lancher": "ranks"}, r"unknown key 'lancher'.*did you mean 'launcher'"),
        ({"library": ["../elsewhere"]}, r"library: expected folders whose names begin with slipway_, found \['../elsewhere'\]"),
        ({"python_version": "3.8.1"}, 'python_version: expected two numbers as text, such as "3.8", found'),
        ({"name": "jax"}, "must be the name of its folder, 'pytorch'"),
        ({"env": ["tf_confi"]}, "did you mean 'tf_config'"),
        ({"folder": "/elsewhere"}, "unknown key 'folder'"),
        ({"name": "../pytorch"}, "name: expected a name of small letters"),
        ({"command": []}, "command: expected words"),
        ({"command": ["{pyton}", "x"]}, r"no placeholder but \{python\}, \{folder\}"),
        (
            {"sidecars": [{"name": "a", "where": "each", "command": ["x"], "env": {1: "A"}}]},
            r"sidecars\[0\]\.env: expected names with values",
        ),
        (
            {"sidecars": [{"name": "a", "where": "each", "command": ["x"], "env": {"A": True}}]},
            r"sidecars\[0\]\.env\.A: expected text or a whole number",
        ),
        ({"sidecars": [{"name": "a", "where": "each", "command": ["{data}"]}]}, r"sidecars: a: command: expected words"),
        (
            {"sidecars": [{"name": "a", "where": where, "command": ["x"]} for where in ("each", "head")]},
            "sidecars: expected each name once",
        ),
        (
            {"missing": [{"words": ["lenet", "vgg19"], "why": "x"}]},
            r"missing: found \['lenet'\], which supports has; valid: one of the two",
        ),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=f"{re.escape(str(PATH))}.*{expected}"):
        parse_framework(yaml.safe_dump({**document(), **change}).encode(), PATH)


@pytest.mark.parametrize("content", [b"a: 2026-99-99", b"a: " + b"9" * 5000, b"\xff\xfe\x00", b"a: !!python/object/apply:os.system [x]"])
def test_what_is_no_yaml_of_plain_values_is_an_error(content: bytes) -> None:
    with pytest.raises(ConfigError, match=f"{re.escape(str(PATH))}.*is not valid YAML"):
        parse_framework(content, PATH)


def test_sidecars_are_read() -> None:
    sidecar = {"name": "s", "where": "head", "command": ["start", "{folder}", "{head}:{port.web}"], "env": {"ROLE": "scheduler", "PORT": 1}}
    spec = parse_framework(yaml.safe_dump({**document(), "sidecars": [sidecar]}).encode(), PATH)
    assert dict(spec.sidecars[0].env) == {"ROLE": "scheduler", "PORT": 1}


CELL = {"mode": "train", "model": "lenet", "precision": "fp32", "layout": "nchw", "comm_hook": "none", "device": "cpu", "seed": 3}


def test_a_cell_it_can_run_passes() -> None:
    check_supports(load_framework("pytorch"), CELL)
    check_supports(load_framework("pytorch"), {**CELL, "device": "site", "precision": "fp16"})
    check_supports(load_framework("pytorch"), {**CELL, "device": "cuda", "precision": "tf32"})
    check_supports(load_framework("pytorch"), {**CELL, "comm_hook": "fp16"})
    check_supports(load_framework("pytorch"), {**CELL, "strategy": "fsdp2"})
    check_supports(load_framework("keras"), {**CELL, "layout": "nhwc", "device": "cuda", "backend": "torch", "precision": "tf32"})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model": "vgg19"}, "does not support model 'vgg19'; valid: alexnet"),
        ({"precision": "fp64"}, "did you mean 'fp16'|valid: bf16"),
        ({"precision": "fp16"}, "precision 'fp16' on GPUs only, and the device is the CPU; valid: fp32, bf16"),
        ({"device": "tpu"}, "does not support device 'tpu'; valid: cpu, cuda"),
        ({"strategy": "zero"}, "does not support strategy 'zero'; valid: ddp, fsdp2, horovod"),
        ({"strategy": "horovod", "device": "cuda"}, "strategy 'horovod' on CPUs only, and the device is a GPU; valid: ddp, fsdp2"),
        ({"strategy": "fsdp2", "mode": "infer"}, "strategy 'fsdp2' is a way to train, and with mode 'infer' ranks are on their own"),
        (
            {"strategy": "fsdp2", "comm_hook": "fp16"},
            "strategy 'fsdp2' has no hooks, found comm_hook 'fp16'; valid: comm_hook none, or ddp",
        ),
    ],
)
def test_a_cell_it_cannot_run_is_refused(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(UnsupportedRequest, match=expected):
        check_supports(load_framework("pytorch"), {**CELL, **change})


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        (
            "mxnet",
            {"model": "lstm"},
            r"'mxnet' does not support model 'lstm': its program builds networks for images alone; valid: alexnet, ",
        ),
        (
            "keras",
            {"device": "cuda", "layout": "nhwc", "backend": "auto"},
            r"'keras' supports backend 'auto' on CPUs only, and the device is a GPU; valid: jax, torch",
        ),
        (
            "tensorflow",
            {"device": "cuda", "layout": "nhwc"},
            r"'tensorflow' does not support device 'cuda': .*no GPU was at hand to try it on; valid: cpu",
        ),
        ("jax", {"precision": "bf16"}, r"'jax' does not support precision 'bf16': .*computes in 32 bits: .*; valid: fp32, tf32"),
        ("bigdl", {"augmentation": "crop"}, r"augmentation 'crop': it reads each sample once and keeps it, .*; valid: none"),
    ],
)
def test_who_asks_for_what_is_missing_is_told_why(name: str, change: dict[str, Any], expected: str) -> None:
    with pytest.raises(UnsupportedRequest, match=expected):
        check_supports(load_framework(name), {**CELL, **change})


def test_the_command_is_filled_in() -> None:
    assert words_of(load_framework("pytorch"), "/usr/bin/python3", "/slipway/program") == (
        "/usr/bin/python3",
        "/slipway/program/program.py",
    )
