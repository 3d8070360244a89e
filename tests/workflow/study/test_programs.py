"""Programs of a study: what is read, what is refused, what of them is a cell's identity."""

from pathlib import Path
from typing import Any

import pytest

from base.errors import ConfigError, RecordError
from data_prep.tree.manifest import FOLDER
from tests.workflow.study.studies import changed, load
from workflow.study.cell import Cell, datasets_of
from workflow.study.series import without_baseline, words_of
from workflow.study.study import Study

LOG = {"log": {"step": r"it (?P<step>\d+)"}}
COMMAND = ["{python}", "{folder}/train.py", "--width", "{args.width}"]


def study_of(tmp_path: Path, program: dict[str, Any] | None = None, **changes: Any) -> Study:
    """Two batches, two widths, on one node; `program`: other keys of it."""
    for name in ("train", "other"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "train.py").touch()
    changes.setdefault("axes", {"model": None, "nodes": None, "args.width": [8, 16]})
    changes.setdefault("base", {"program": "gpt", "args": {"depth": 2}})
    return load(tmp_path, changed(programs={"gpt": {"folder": "train", "command": COMMAND, **(program or {})}}, **changes))


def test_a_cell_carries_its_program_and_arguments(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    assert [(cell.batch_size, cell.args) for cell in study.cells] == [
        (32, {"depth": 2, "width": 8}), (32, {"depth": 2, "width": 16}), (64, {"depth": 2, "width": 8}), (64, {"depth": 2, "width": 16}),
    ]  # fmt: skip
    cell = study.cells[0]
    assert (cell.framework, cell.model) == ("gpt", "gpt")
    assert cell.program is not None
    assert cell.program["folder"] == str(tmp_path / "train")
    assert Cell.from_json(cell.to_json()) == cell


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"env": None}, "program.env: expected"),
        ({"env": {"A": 3}}, "program.env.A: expected text, found 3"),
        ({"command": []}, "program.command: expected a command of one word or more"),
        ({"command": "sh"}, "program.command: expected a list"),
        ({"launcher": "mpi"}, "program.launcher: expected one of single, torchrun, ranks, mpirun"),
        ({"env_from": ["tf"]}, "program.env_from[0]: expected one of tf_config, paddle, dmlc, horovod, found 'tf'"),
        ({"mounts": [{"source": "/a"}]}, "program.mounts[0]: the key 'target' is missing"),
        ({"name": "../up"}, "program.name: expected a name"),
    ],
)
def test_a_study_json_that_somebody_edited_is_refused_by_its_key(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    plain = study_of(tmp_path).cells[0].to_json()
    with pytest.raises(RecordError) as caught:
        Cell.from_json({**plain, "program": {**plain["program"], **change}})
    assert words in str(caught.value)


def test_arguments_may_be_written_with_a_dot_or_within_args(tmp_path: Path) -> None:
    axes = {"model": None, "nodes": None, "args": {"width": [8, 16]}}
    assert study_of(tmp_path, axes=axes).cells == study_of(tmp_path).cells
    rows: dict[str, dict[str, Any]] = {"base": {"program": "gpt"}, "axes": {"model": None, "nodes": None}}
    zipped = study_of(tmp_path, zip=[{"args.width": 8, "args.depth": 2}, {"args": {"width": 16, "depth": 2}}], **rows)
    assert zipped.cells == study_of(tmp_path).cells
    rows["axes"]["batch_size"] = None
    included = study_of(
        tmp_path, include=[{"args.width": 8, "batch_size": 4}], base={"program": "gpt", "args": {"depth": 2}}, axes=rows["axes"]
    )
    assert [cell.args for cell in included.cells] == [{"depth": 2, "width": 8}], "beside those of base"


def test_expressions_and_the_baseline_name_arguments(tmp_path: Path) -> None:
    study = study_of(tmp_path, exclude=["args.width == 16 and batch_size > 32"], baseline={"args.width": 8})
    assert [(cell.batch_size, (cell.args or {})["width"]) for cell in study.cells] == [(32, 8), (32, 16), (64, 8)]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"folder": "other"}, True),
        ({"image": "registry/name:tag"}, True),
        ({"python": "/opt/python"}, True),
        ({"mounts": [{"source": "/tokens", "target": "/tokens"}]}, True),
        ({"unit": "samples"}, True),
        ({"unit": "tokens"}, False),
        ({"version": 2}, False),
        ({"env": {"A": "1"}}, False),
        ({"launcher": "ranks"}, False),
        ({"launcher": "ranks", "env_from": ["dmlc"]}, False),
        ({"sidecars": [{"name": "a", "where": "head", "command": ["x"]}]}, False),
        ({"command": [*COMMAND, "--fast"]}, False),
    ],
)
def test_how_it_is_started_makes_the_cell_and_where_it_lies_does_not(tmp_path: Path, change: dict[str, Any], same: bool) -> None:
    before, after = ({cell.cell_id for cell in study_of(tmp_path, keys).cells} for keys in ({}, change))
    assert (before == after) is same
    assert len(before) == 4


def test_an_interpreter_with_a_slash_is_a_path_from_the_study_on_and_links_are_kept(tmp_path: Path) -> None:
    (tmp_path / "env").symlink_to("/usr")
    found = {}
    for text in ("python3", "/opt/python", "env/bin/python", "../env/bin/python"):
        (program,) = {cell.program["python"] for cell in study_of(tmp_path, {"python": text}).cells if cell.program}
        found[text] = program
    assert found == {
        "python3": "python3",
        "/opt/python": "/opt/python",
        "env/bin/python": f"{tmp_path}/env/bin/python",
        "../env/bin/python": f"{tmp_path.parent}/env/bin/python",
    }


def test_a_word_of_a_command_may_be_longer_than_the_name_of_a_file(tmp_path: Path) -> None:
    script = " && ".join(50 * ["echo"])
    (program,) = {tuple(cell.program["command"]) for cell in study_of(tmp_path, {"command": ["sh", "-c", script]}).cells if cell.program}
    assert program == ("sh", "-c", script)


def test_a_cell_of_a_framework_says_nothing_of_programs(tmp_path: Path) -> None:
    assert {"program", "args"}.isdisjoint(load(tmp_path, changed()).cells[0].to_json())


@pytest.mark.parametrize(
    ("program", "changes", "words"),
    [
        ({"folder": "nowhere"}, {}, "programs.gpt.folder: found 'nowhere', which is not there"),
        ({"command": ["{folder}/tain.py"]}, {}, "programs.gpt.command[0]: found '{folder}/tain.py', which is not in the program's folder "),
        ({"command": ["{python}", "-u", "train.py"]}, {}, "command[2]: found 'train.py', and a command runs in the run's output directory"),
        ({"command": ["{python}", "-X", "dev", "train.py"]}, {}, "no such file is; valid: {folder}/train.py"),
        ({"command": ["deepspeed", "./train.py"]}, {}, "command[1]: found './train.py', "),
        (
            {"command": ["torchrun", "--nproc-per-node", "1", "{folder}/train.py"]},
            {},
            "command[0]: found torchrun, which the launcher torchrun starts itself; valid: {python} and the script, or launcher: single",
        ),
        ({"command": ["./train.py"]}, {}, "no such file is; valid: {folder}/train.py"),
        ({"command": ["python3", "gone.py"]}, {}, "valid: {folder}/FILE, or an absolute path"),
        ({"sidecars": [{"name": "a", "where": "head", "command": ["{folder}/gone"]}]}, {}, "sidecars[0].command[0]: found '{folder}/gone'"),
        ({"env": {"A": "a\nb"}}, {}, "programs.gpt.env.A: "),
        (
            {"command": "python3 -u ./train.py --out {out}"},
            {},
            "programs.gpt.command: found the text 'python3 -u ./train.py --out {out}'; valid: a list",
        ),
        ({"folder": None}, {}, "programs.gpt.folder: found nothing"),
        ({"python": "~nobody-here/python"}, {}, "programs.gpt: '~nobody-here/python': ~nobody-here has no home directory"),
        ({"comand": ["x"]}, {}, "programs.gpt.comand: unknown key; valid: "),
        (
            {"command": ["{args.widht}"]},
            {},
            "programs.gpt.command[0]: found {args.widht}, and some or all cells of this program have no `args: {widht: ...}`; ",
        ),
        ({"command": ["{pyhton}"]}, {}, "did you mean 'python'?"),
        ({"env_from": ["tf_config"]}, {}, "with launcher torchrun, which sets the variables of its ranks itself; valid: launcher: ranks"),
        (
            {"env_from": ["dmlc"], "env": {"DMLC_ROLE": "x"}, "launcher": "ranks"},
            {},
            "found dmlc, which sets DMLC_ROLE, and env sets it too",
        ),
        ({"sidecars": [{"name": "a", "where": "head", "command": ["{haed}"]}]}, {}, "did you mean 'head'?"),
        ({"sidecars": 2 * [{"name": "a", "where": "head", "command": ["x"]}]}, {}, "sidecars[1].name: found 'a' a second time"),
        (
            {"launcher": "mpirun", "sidecars": [{"name": "orted", "where": "head", "command": ["x"]}]},
            {},
            "programs.gpt.sidecars[0].name: found 'orted', which the launcher mpirun has for one of its own",
        ),
        (
            {
                **{"launcher": "ranks", "env_from": ["dmlc"]},
                "sidecars": [{"name": "a", "where": "head", "command": ["x"], "env": {"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "3"}}],
            },
            {},
            "programs.gpt.sidecars[0].env.DMLC_NUM_WORKER: found it here, and env_from: [dmlc] sets it for sidecars too",
        ),
        ({"command": [3]}, {}, "programs.gpt.command[0]: found the whole number 3; valid: a word of the command"),
        ({"env": {"RANK": "3"}}, {}, "and none that Slipway sets itself"),
        (
            {"mounts": [{"source": "a", "target": "mine"}]},
            {},
            "programs.gpt.mounts[0].target: found the text 'mine'; valid: an absolute path",
        ),
        ({"mounts": [{"source": "a", "target": "/slipway/out"}]}, {}, "that is none of the system's or of Slipway's"),
        ({"mounts": [{"source": "a", "target": "//slipway/out"}]}, {}, "that is none of the system's or of Slipway's"),
        ({"mounts": [{"source": "a", "target": "//"}]}, {}, "that is none of the system's or of Slipway's"),
        ({"mounts": [{"source": "a,b", "target": "/a"}]}, {}, "valid: a path without comma or quote"),
        ({"mounts": [{"source": "a", "target": "/a"}, {"source": "b", "target": "/a"}]}, {}, "mounts[1].target: found '/a' a second time"),
        ({"mounts": [{"source": "a", "target": "/a"}]}, {}, "which can put nothing elsewhere; valid: a target that is the source"),
        ({}, {"base": {"program": "gtp"}}, "base.program: found 'gtp', which is not under programs; valid: gpt"),
        ({}, {"base": {"program": "gpt", "framework": "pytorch"}}, "framework and program are both given"),
        ({}, {"base": {"program": "gpt", "epochs": 3}}, "base.epochs: found epochs, and how many steps are an epoch is up to the program"),
        ({}, {"base": {"program": "gpt", "args": {"Width": 3}}}, "base.args.Width: found the text 'Width'; valid: the name of an argument"),
        ({}, {"base": {"program": "gpt", "args.width": [3]}}, "a finite number, or true or false; several values are written under axes"),
        ({}, {"base": {"program": "gpt", "args": {"depth": 1}, "args.depth": 2}}, "args.depth stands here twice"),
        ({}, {"base": {"model": "lenet", "args": {"depth": 1}}}, "found an argument for cells without a program"),
        ({"command": ["x", "--data={data}"]}, {"base": {"program": "gpt", "dataset": None}}, "programs.gpt.command[1]: found {data}, and"),
        ({"command": ["x", "{port.Ps-1}"]}, {}, "programs.gpt.command[1]: found {port.Ps-1}, which is no name of a port; valid: lower"),
        (
            {},
            {"base": {"program": "gpt", "dataset": "none", "model": "lenet"}},
            "base.model: found 'lenet', a network of Slipway's for images",
        ),
        (
            {"events": LOG, "checkpoint": True},
            {},
            "programs.gpt.checkpoint: found true, and a program that writes no events cannot tell of a checkpoint",
        ),
        ({"events": LOG, "unit": "tokens"}, {}, "programs.gpt.events.log.step: found an expression without the group tokens"),
        ({}, {"exclude": ["args.widht == 3"]}, "unknown key 'args.widht' in the expression; valid: args.depth, args.width, "),
    ],
)
def test_what_is_wrong_is_said_where_it_stands(tmp_path: Path, program: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study_of(tmp_path, program, **changes)
    assert words in str(caught.value), str(caught.value)
    assert f"{tmp_path}/study.yaml:" in str(caught.value)


def test_a_program_may_do_without_a_dataset(tmp_path: Path) -> None:
    """Left out, as the word `none`, or under a name of its own: the same cells. What a study with one says of it stays as it was."""
    left_out = study_of(tmp_path, base={"program": "gpt", "dataset": None}, datasets=None)
    said = study_of(tmp_path, base={"program": "gpt", "dataset": "none"})
    named = study_of(tmp_path, base={"program": "gpt", "dataset": "own"}, datasets={"own": {"source": "none"}})
    assert [cell.cell_id for cell in left_out.cells] == [cell.cell_id for cell in said.cells] == [cell.cell_id for cell in named.cells]
    assert {(cell.dataset, cell.dataset_spec["source"], cell.has_dataset) for cell in left_out.cells} == {("none", "none", False)}
    assert said.notes == ("no cell uses the dataset digits: nothing builds it",)
    assert datasets_of(left_out.cells) == []
    assert datasets_of(study_of(tmp_path).cells) == ["digits"]
    assert study_of(tmp_path).cells[0].cell_id == "gpt-digits-b32-n1-g1-c5f4c03aae"


def test_a_tree_of_files_is_told_by_its_path_and_not_by_how_it_is_hashed(tmp_path: Path) -> None:
    def ids(**keys: Any) -> list[str]:
        study = study_of(tmp_path, datasets={"digits": {"source": "files", "path": "corpus", **keys}})
        assert study.datasets["digits"].to_json() == {"source": "files", "path": str(tmp_path / "corpus"), "shards": keys.get("shards", 8)}
        assert {cell.data_folder for cell in study.cells} == {FOLDER}
        return [cell.cell_id for cell in study.cells]

    assert ids() == ids(shards=3)
    assert ids()[0].startswith("gpt-corpus-b32-n1-g1-")


def test_a_folder_that_cannot_be_taken_along_is_refused_before_anything_runs(tmp_path: Path) -> None:
    study_of(tmp_path)
    (tmp_path / "train" / "data").symlink_to("/nowhere")
    with pytest.raises(ConfigError, match="which cannot be taken along: .*train/data is a link"):
        study_of(tmp_path)


def test_two_programs_are_told_apart_by_their_names_and_one_can_be_the_baseline(tmp_path: Path) -> None:
    programs = {name: {"command": ["train", "{batch_size}"]} for name in ("plain", "fast")}
    axes = {"model": None, "program": ["plain", "fast"], "batch_size": [32]}
    study = load(tmp_path, changed(programs=programs, axes=axes, baseline={"program": "plain", "nodes": 1}))
    assert not without_baseline(study.cells, study.baseline)
    words = words_of(study.cells, study.site, 1)
    assert [words(run) for run in study.runs if run.cell.nodes == 1 and run.repeat == 1 and run.cell.framework == "fast"] == [
        "fast, batch 32, 1 node"
    ]


def test_in_a_container_it_needs_an_image(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("storage: storage\ncache: {path: cache}\nscheduler: local\nengine: docker\n")
    (tmp_path / "train").mkdir()
    study = changed(programs={"gpt": {"folder": "train", "command": ["x"]}}, base={"program": "gpt"}, axes={"model": None})
    with pytest.raises(ConfigError, match="found 'gpt', which has no image, and the site's engine is docker; valid: image: NAME"):
        load(tmp_path, study, str(tmp_path / "site.yaml"))


def test_a_program_may_not_be_called_as_a_framework(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which is a framework of Slipway's"):
        load(tmp_path, changed(programs={"pytorch": {"command": ["x"]}}))


def test_a_program_that_no_cell_uses_is_noted(tmp_path: Path) -> None:
    assert load(tmp_path, changed(programs={"gpt": {"command": ["x"]}})).notes == ("no cell uses the program gpt",)


def test_samples_of_one_program_are_not_compared_with_tokens_of_another(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    programs = {
        name: {"folder": "train", "command": ["{python}", "-c", "pass"], "unit": unit}
        for name, unit in (("gpt", "tokens"), ("other", "tokens"), ("net", "samples"))
    }
    axes = {"model": None, "batch_size": None, "nodes": None, "program": ["net", "gpt", "other"]}
    base = {"framework": None, "batch_size": 4}
    study = load(tmp_path, changed(programs=programs, base=base, axes=axes, baseline={"program": "gpt"}))
    assert without_baseline(study.cells, study.baseline) == {
        "no baseline cell (the nearest one differs in unit (tokens there, samples here))": 1
    }


def test_cells_without_an_exchange_have_no_baseline_though_it_names_the_hook(tmp_path: Path) -> None:
    study = load(tmp_path, changed(axes={"comm_hook": ["none", "noop"]}, baseline={"nodes": 1, "comm_hook": "none"}))
    (found,) = without_baseline(study.cells, study.baseline).items()
    assert found == ("no baseline cell (gradients are not exchanged (comm_hook: noop): a diagnosis, without speed-up)", 4)


@pytest.mark.parametrize("events", [LOG, "none"])
def test_who_tells_of_the_steps_is_part_of_the_cell_and_the_default_is_not(tmp_path: Path, events: Any) -> None:
    plain, told = study_of(tmp_path).cells[0], study_of(tmp_path, {"events": "program"}).cells[0]
    other = study_of(tmp_path, {"events": events}).cells[0]
    assert plain == told
    assert other.cell_id != plain.cell_id
    assert Cell.from_json(other.to_json()) == other


@pytest.mark.parametrize(
    ("events", "place", "words"),
    [
        ("log", "programs.gpt.events", "found the text 'log'; valid: none, program"),
        ({"lo": {}}, "programs.gpt.events.lo", "unknown key; valid: log"),
        ({"log": {}}, "programs.gpt.events.log.step", "this key is missing"),
        ({"log": {"stepp": "x"}}, "programs.gpt.events.log.stepp", "did you mean 'step'"),
        ({"log": {"step": "it (.*"}}, "programs.gpt.events.log.step", "which is no regular expression of Python's"),
        ({"log": {"step": 3}}, "programs.gpt.events.log.step", "found the whole number 3; valid: a regular expression, in single quotes"),
        ({"log": {"step": "(?P<lsos>.)"}}, "programs.gpt.events.log.step", "did you mean 'loss'"),
        ({"log": {"step": "(?P<step>.)", "every": 5}}, "programs.gpt.events.log.every", "the group step tells which step it is"),
    ],
)
def test_a_wrong_expression_is_named_where_it_stands(tmp_path: Path, events: Any, place: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study_of(tmp_path, {"events": events})
    assert place in str(caught.value)
    assert words in str(caught.value)


def test_tokens_per_second_are_told_by_lines(tmp_path: Path) -> None:
    assert study_of(tmp_path, {"events": {"log": {"step": r"it (?P<step>\d+) of (?P<tokens>\d+)"}}, "unit": "tokens"}).cells


def test_arguments_that_no_command_uses_are_noted(tmp_path: Path) -> None:
    assert study_of(tmp_path, {"command": ["/bin/x", "{args.width}"]}).notes == (
        "program gpt: no word of its command uses args.depth; that is right if the program itself asks for it, as SLIPWAY_ARG_DEPTH or "
        "run.args",
    )


@pytest.mark.parametrize(
    ("command", "step", "noted"),
    [
        ("train", r"it (?P<step>\d+)", True),
        ("train --batch={batch_size}", r"it (?P<step>\d+)", False),
        ("train --batch={global_batch_size}", r"it (?P<step>\d+)", False),
        ("train", r"it (?P<step>\d+) of (?P<samples>\d+)", False),
    ],
)
def test_a_batch_that_nobody_gives_or_reports_is_noted(tmp_path: Path, command: str, step: str, noted: bool) -> None:
    arguments = ["{args.width}", "{args.depth}"]
    found = study_of(tmp_path, {"command": [*command.split(), *arguments], "events": {"log": {"step": step}}}).notes
    words = (
        "program gpt: its output reports no samples, and no word of its command uses {batch_size}: the rate takes batch_size of the study"
    )
    assert [note.partition(", whatever")[0] for note in found] == ([words] if noted else [])


def test_an_argument_that_another_program_uses_is_not_noted(tmp_path: Path) -> None:
    programs = {"a": {"command": ["x", "{args.width}"]}, "b": {"command": ["x"]}}
    axes = {"model": None, "nodes": None, "program": ["a", "b"]}
    assert load(tmp_path, changed(programs=programs, axes=axes, base={"args": {"width": 3}})).notes == ()


# framework.yaml in the folder of a program: its keys are the program's, and stand in one place only.


FILE = """\
launcher: ranks
command: ["{python}", "{folder}/train.py"]
env: {C: "1"}
env_from: [tf_config]
sidecars:
  - {name: store, where: head, command: [store]}
"""


def study_with_file(tmp_path: Path, file: str, **program: Any) -> Study:
    (tmp_path / "train").mkdir(exist_ok=True)
    (tmp_path / "train" / "train.py").touch()
    (tmp_path / "train" / "framework.yaml").write_text(file)
    study = changed(programs={"gpt": {"folder": "train", **program}}, base={"program": "gpt"}, axes={"model": None})
    return load(tmp_path, study)


def refused(tmp_path: Path, file: str, **program: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        study_with_file(tmp_path, file, **program)
    return str(caught.value).replace(str(tmp_path), "")


def test_keys_of_the_folder_are_those_of_the_program(tmp_path: Path) -> None:
    program = study_with_file(tmp_path, FILE, unit="tokens").cells[0].program
    assert program is not None
    assert program["unit"] == "tokens", "beside the keys of the study"
    assert (program["launcher"], program["command"], program["env_from"]) == ("ranks", ("{python}", "{folder}/train.py"), ("tf_config",))
    assert (program["env"], program["sidecars"][0]["name"]) == ({"C": "1"}, "store")


def test_the_same_keys_in_the_study_make_the_same_cells(tmp_path: Path) -> None:
    found = study_with_file(tmp_path, FILE).cells
    keys = {"launcher": "ranks", "command": ["{python}", "{folder}/train.py"], "env": {"C": "1"}, "env_from": ["tf_config"]}
    sidecars = [{"name": "store", "where": "head", "command": ["store"]}]
    (tmp_path / "train" / "framework.yaml").unlink()
    study = changed(programs={"gpt": {"folder": "train", **keys, "sidecars": sidecars}}, base={"program": "gpt"}, axes={"model": None})
    assert load(tmp_path, study).cells == found


def test_what_it_supports_and_its_packages_are_no_part_of_its_cells(tmp_path: Path) -> None:
    plain, *_ = study_with_file(tmp_path, FILE).cells
    supports = "supports: {modes: [train], models: [gpt], devices: [cpu], precision: [fp32], readers: [slipway]}\n"
    found, *_ = study_with_file(tmp_path, f"{FILE}{supports}packages: [numpy==1.0, torch]\n").cells
    assert found.cell_id == plain.cell_id
    assert found.program == {**(plain.program or {}), "packages": ("numpy==1.0", "torch")}
    assert Cell.from_json(found.to_json()).program == found.program


@pytest.mark.parametrize(
    ("file", "program", "words"),
    [
        (FILE, {"launcher": "single"}, "/train/framework.yaml:1: launcher: found here and in /study.yaml:28: programs"),
        (FILE, {"env_from": ["dmlc"]}, "/train/framework.yaml:4: env_from: found here and in /study.yaml:28: programs.gpt.env_from; valid"),
        ("command: [a]\nlauncher: mpi\n", {}, "/train/framework.yaml:2: programs.gpt.launcher: found the text 'mpi'; "),
        ("command: [a]\nlaunch: ranks\n", {}, "/train/framework.yaml:2: programs.gpt.launch: unknown key; valid: "),
        ("command:\n  - a\n  - '{nowhere}'\n", {}, "/train/framework.yaml:3: programs.gpt.command[1]: found {nowhere}, which is not known"),
        ("launcher: ranks\n", {}, "/study.yaml:26: programs.gpt.command: this key is missing"),
        ("command: [a]\nfolder: .\n", {}, "/train/framework.yaml:2: folder: this file lies in the folder"),
        ("command: [a]\nfacts: {}\n", {}, "/train/framework.yaml:2: programs.gpt.facts: unknown key"),
        ("command: [a]\nsupports: {precision: [bf16, fp16]}\n", {}, "program 'gpt' does not support precision 'fp32'; valid: bf16, fp16"),
        (
            "command: [a]\nsupports: {cuda_only: {precision: [fp32]}}\n",
            {},
            "program 'gpt' supports precision 'fp32' on GPUs only, and the device is the CPU; valid: another one, or device: cuda",
        ),
        ("command: [a]\nsupports: {mode: [train]}\n", {}, "/train/framework.yaml:2: programs.gpt.supports.mode: unknown key"),
        ("command: [a]\npackages: ['torch>=2']\n", {}, "/train/framework.yaml:2: programs.gpt.packages[0]: found"),
        ("", {}, "/train/framework.yaml: the program file is empty; write its command, or remove it"),
        ("- a\n", {}, "/train/framework.yaml:1: a program file is a mapping of keys to values; found a list"),
        ("a: [\n", {}, "/train/framework.yaml:2: this is not YAML"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(tmp_path: Path, file: str, program: dict[str, Any], words: str) -> None:
    assert words in refused(tmp_path, file, **program)
