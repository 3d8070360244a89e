"""Everything that can be wrong in a study has an answer: file, line, key, what was found, what is valid, the closest word."""

from pathlib import Path
from typing import Any

import pytest

from base.errors import ConfigError
from tests.workflow.study.studies import changed, load


def message_of(folder: Path, study: dict[str, Any] | str, site: str = "local") -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, study, site)
    return str(caught.value)


DIGITS = {"source": "sklearn-digits", "size": 32, "shards": 4}
TEXT = {"source": "text", "path": "text", "sequence_length": 16}
PLANES = {"datasets": {"digits": {**DIGITS, "layout": "caffe"}}}
NATIVE = {"framework": "caffe", "reader": "native"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"datasets": {"digits": {"source": "folder", "path": "~nosuchuser/x"}}}, ["datasets.digits", "~nosuchuser has no home directory"]),
        ({"axes": {"nodes": [1, -2]}}, ["axes.nodes[1]", "-2", "greater than or equal to 1"]),
        ({"axes": {"nodes": [1, "2"]}}, ["axes.nodes[1]", "text '2'", "whole number"]),
        ({"axes": {"nodes": [2.0]}}, ["axes.nodes[0]", "a whole number"]),
        ({"base": {"nodes": [1, 2]}}, ["base.nodes: found a list; valid: a whole number; several values are written under axes"]),
        ({"axes": {"nodes": [True]}}, ["axes.nodes[0]", "truth value true", "whole number"]),
        ({"axes": {"nodes": 2}}, ["axes.nodes", "a list, also for one value: [...]"]),
        ({"axes": {"nodes": []}}, ["axes.nodes", "at least one"]),
        ({"axes": {"nodes": [1, 2, 1]}}, ["axes", "in the study already"]),
        ({"axes": {"nodes": None, "node": [1]}}, ["axes.node", "unknown key", "did you mean 'nodes'"]),
        (
            {"axes": {"optimizer.learning_rate": [0.1, 0.2]}},
            ["axes.optimizer.learning_rate: unknown key; write optimizer: [{learning_rate: ...}, {learning_rate: ...}]"],
        ),
        ({"base": {"steps.warmup": 3}}, ["base.steps.warmup: unknown key; write steps: {warmup: ...}"]),
        ({"axes": {"repeats": [1]}}, ["axes.repeats", "base"]),
        ({"base": {"profile": True}}, ["base.profile", "it stands at the top level of the file"]),
        ({"axes": {"model": ["lenett"]}}, ["axes.model[0]", "'lenett'", "did you mean 'lenet'"]),
        ({"axes": {"model": ["LeNet"]}}, ["axes.model[0]", "'LeNet'", "lower-case", "did you mean 'lenet'?"]),
        ({"axes": {"model": ["$(reboot)"]}}, ["axes.model[0]", "$(reboot)", "lower-case"]),
        ({"axes": {"dataset": ["digit"]}}, ["axes.dataset[0]", "'digit'", "did you mean 'digits'"]),
        ({"base": {"framework": "pytorhc"}}, ["base.framework", "pytorhc", "did you mean 'pytorch'"]),
        *[
            ({"base": {"bucket_cap_mb": 50, **keys}}, ["base.bucket_cap_mb", "found 50, which is only for framework pytorch that trains"])
            for keys in ({"mode": "infer"}, {"framework": "jax"}, {"strategy": "fsdp2"}, {"comm_hook": "powersgd"})
        ],
        *[
            ({"base": {"evaluate_every": 1, **keys}}, ["base.evaluate_every", words])
            for keys, words in (
                ({"mode": "infer"}, "found 1, which is only for frameworks that evaluate"),
                ({"reader": "memory"}, "found 1, which is only for frameworks that evaluate"),
                ({"framework": "caffe"}, "found 1, which is only for frameworks that evaluate between steps, in mode train"),
            )
        ],
        ({"base": {"comm_hook": "noop"}, "baseline": {"nodes": 1}}, ["baseline", "no cell has {nodes: 1}"]),
        *[
            ({"base": {"comm_hook": hook, "mode": "infer"}}, ["base.comm_hook", f"found {hook}, which is only for mode train; valid: none"])
            for hook in ("fp16", "noop")
        ],
        ({"base": {"device": "gpu"}}, ["base.device", "did you mean 'cuda'"]),
        (
            {"base": {"conv_algorithm": "measured", "device": "cpu"}},
            ["base.conv_algorithm", "supports conv_algorithm 'measured' on GPUs only, and the device is the CPU; valid: auto"],
        ),
        (
            {"base": {"conv_algorithm": "measured", "framework": "jax"}},
            ["base.conv_algorithm", "framework 'jax' does not support conv_algorithm 'measured'; valid: auto"],
        ),
        *[
            (
                {"base": {"input_gradient": True, **keys}, **more},
                ["base.input_gradient", "only for framework pytorch that trains on images"],
            )
            for keys, more in (
                ({"mode": "infer"}, {}),
                ({"framework": "jax"}, {}),
                ({"dataset": "text", "model": "lstm"}, {"axes": {"model": None}, "datasets": {"text": TEXT}}),
            )
        ],
        *[
            ({"base": {"crop_size": 24, **keys}, **more}, ["base.crop_size", words])
            for keys, more, words in (
                ({"crop_size": 33}, {}, "the images of dataset 'digits' have 32x32; valid: at most 32"),
                ({"crop_size": 8}, {}, "found 8, and lenet needs images of at least"),
                ({"framework": "bigdl"}, {}, "found 24, which is only for images that Slipway reads, and frameworks that take parts"),
                (NATIVE, PLANES, "found 24, which is only for images that Slipway reads"),
                (
                    {"dataset": "text", "model": "lstm"},
                    {"axes": {"model": None}, "datasets": {"text": TEXT}},
                    "found 24, which is only for images that Slipway reads",
                ),
            )
        ],
        (
            {"base": {"mode": "infer", "augmentation": "flip"}},
            ["base.augmentation", "found flip, which is only for mode train", "valid: none"],
        ),
        ({"base": {"backend": "jax"}}, ["base.backend", "'pytorch' does not support backend 'jax'; valid: auto"]),
        ({"base": {"strategy": "fsdp"}}, ["base.strategy", "ddp, fsdp2, horovod", "did you mean 'fsdp2'"]),
        ({"base": {"reader": "native"}}, ["base.reader", "'pytorch' does not support reader 'native'; valid: memory, slipway"]),
        ({"base": NATIVE}, ["base.reader", "with encoding: jpeg or layout: caffe in the dataset; valid: slipway"]),
        ({"base": {**NATIVE, "augmentation": "flip"}, **PLANES}, ["base.augmentation", "only for mode train on images that Slipway reads"]),
        ({"base": {"framework": "bigdl", "augmentation": "flip"}}, ["base.augmentation", "'flip': it reads each sample once and keeps it"]),
        (
            {"base": {**NATIVE, "mode": "infer"}, **PLANES},
            ["base.reader", "found native, which is only for frameworks; native in mode train"],
        ),
        ({"base": {"framework": "jax", "strategy": "fsdp2"}}, ["base.strategy", "'jax' does not support strategy 'fsdp2'; valid: ddp"]),
        ({"base": {"strategy": "fsdp2"}, "axes": {"comm_hook": ["fp16"]}}, ["base.strategy", "has no hooks, found comm_hook 'fp16'"]),
        ({"base": {"framework": "torch7"}}, ["base.framework", "'torch7' is not known", "valid: "]),
        ({"base": {"threads": 0}}, ["base.threads", "0", "auto"]),
        ({"base": {"threads": "all"}}, ["base.threads", "'all'", "auto"]),
        ({"base": {"save_parameters": "true"}}, ["base.save_parameters", "text 'true'", "true or false"]),
        ({"base": {"optimizer": {"lr": 1}}}, ["base.optimizer.lr", "unknown key", "learning_rate"]),
        ({"base": {"optimizer": {"learning_rate": 0}}}, ["base.optimizer.learning_rate", "greater than 0"]),
        ({"base": {"optimizer": {"momentum": 1}}}, ["base.optimizer.momentum", "less than 1"]),
        ({"base": {"optimizer": {"name": "adamw", "momentum": 0.5}}}, ["base.optimizer", "momentum is not for name: adamw"]),
        ({"base": {"framework": "caffe", "optimizer": {"name": "adamw"}}}, ["base.optimizer", "adamw, which framework caffe has not"]),
        ({"base": {"framework": "caffe", "optimizer": {"clip_norm": 1.0}}}, ["base.optimizer", "clip_norm, which framework caffe has not"]),
        ({"base": {"strategy": "horovod", "optimizer": {"clip_norm": 1.0}}}, ["base.optimizer", "averaged in the update"]),
        ({"base": {"steps": {"warmup": 5, "measured": 5, "total": 9}}}, ["base.steps", "total 9", "= 10"]),
        ({"base": {"steps": 50}}, ["base.steps", "mapping", "such as {warmup: ..., measured: ...}"]),
        ({"base": {"steps": {"measured": 5}, "epochs": 2}}, ["base.epochs", "steps and epochs", "exactly one"]),
        ({"base": {"epochs": 2}, "axes": {"steps": [{"measured": 5}]}}, ["axes.steps", "exactly one"]),
        ({"base": {"batch_size": 8, "global_batch_size": 8}, "axes": {"batch_size": None}}, ["global_batch_size", "exactly one"]),
        ({"base": {"global_batch_size": 64}}, ["axes.batch_size", "batch_size and global_batch_size", "exactly one"]),
        ({"axes": {"batch_size": None}}, ["no batch", "batch_size (per GPU)"]),
        ({"axes": {"model": None}}, ["no model"]),
        ({"axes": {"batch_size": None, "global_batch_size": [64, 65]}}, ["65", "nodes 2 x gpus_per_node 1 = 2", "64 or 66"]),
        ({"zip": [{"nodes": 3}]}, ["zip[0].nodes", "axes and in zip"]),
        ({"zip": [{"seed": 1, "threads": 1}, {"seed": 2}]}, ["zip[1]", "threads", "same keys"]),
        ({"zip": [{"seed": 1}, {"seed": 1}]}, ["zip[1]", "in the study already"]),
        ({"zip": {"seed": [1, 2]}}, ["zip", "a list"]),
        ({"include": [{"model": "lenet", "batch_size": 32}]}, ["include[0]", "in the study already"]),
        ({"include": [{"batch_size": 32}]}, ["include[0]", "no model"]),
        ({"include": [{"model": "lenet", "batch_size": 32, "node": 1}]}, ["include[0].node", "did you mean 'nodes'"]),
        ({"exclude": "nodes > 1"}, ["exclude", "a list"]),
        ({"exclude": ["nodes >= 1"]}, ["exclude", "no cell is left of 4", "'nodes >= 1' removes 4"]),
        ({"exclude": ["node > 1"]}, ["exclude[0]", "unknown key 'node'", "did you mean 'nodes'"]),
        ({"exclude": ["model == lenet"]}, ["exclude[0]", "unknown key 'lenet'", "quotes"]),
        ({"exclude": ["nodes > 'a'"]}, ["exclude[0]", "different kinds"]),
        ({"exclude": ["__import__('os').system('x')"]}, ["exclude[0]", "not allowed"]),
        ({"exclude": ["nodes = 1"]}, ["exclude[0]", "not an expression"]),
        ({"exclude": [3]}, ["exclude[0]", "whole number 3", "text"]),
        ({"target_accuracy": 75}, ["target_accuracy", "the whole number 75", "1"]),
        ({"baseline": {"nodes": 4}}, ["baseline.nodes", "found 4", "1, 2"]),
        ({"baseline": {"nodes": 1, "batch_size": 7}}, ["baseline.batch_size", "found 7", "32, 64"]),
        ({"baseline": {"nodes": 1, "global_batch_size": 128}}, ["baseline", "together"]),
        ({"baseline": {}}, ["baseline", "found no key"]),
        ({"baseline": {"nodes": 1, "optimizer": {"learning_rate": 1.0}}}, ["baseline.optimizer.learning_rate", "found 1", "0.01"]),
        ({"baseline": {"nodes": [1]}}, ["baseline.nodes", "a list", "whole number"]),
        ({"limits": {"walltime": 1800}}, ["limits.walltime", "1800s"]),
        ({"limits": {"walltime": "12:30:00"}}, ["limits.walltime", "'12:30:00'", "such as 90s, 30m, 1h30m or 2d"]),
        ({"limits": {"walltime": "0s"}}, ["limits.walltime", "more than nothing"]),
        ({"limits": {"walltime": "9" * 40 + "d"}}, ["limits.walltime", "number with its unit"]),
        ({"limits": {"wall_time": "1h"}}, ["limits.wall_time", "did you mean 'walltime'"]),
        ({"directives": ["--exclusive"]}, ["directives", "site file"]),
        ({"engine": "docker"}, ["engine", "site file"]),
        ({"nodes": [1]}, ["nodes", "axes"]),
        ({"walltime": "1h"}, ["walltime", "limits"]),
        ({"stduy": "x", "study": None}, ["stduy", "did you mean 'study'", "study: this key is missing"]),
        ({"study": "../up"}, ["study", "../up"]),
        ({"study": "a\nb"}, ["study", "a\\nb"]),
        ({"study": "Ab"}, ["study", "lower-case"]),
        ({"study": "x" * 65}, ["study", "at most 64"]),
        ({"study": None}, ["study", "missing"]),
        ({"datasets": None}, ["base.dataset", "'digits', which is not under datasets"]),
        ({"datasets": {"digits": None}}, ["base.dataset", "valid: none"]),
        ({"datasets": {"a/b": DIGITS}}, ["datasets.a/b", "a name"]),
        ({"datasets": {"digits": {"source": "sklearn_digits"}}}, ["datasets.digits.source", "did you mean 'sklearn-digits'"]),
        ({"datasets": {"digits": {}}}, ["datasets.digits.source", "missing"]),
        ({"datasets": {"x": {"source": "none", "size": 3}}}, ["datasets.x", "size is for images; with source: none leave it out"]),
        ({"datasets": {"x": {"source": "none", "path": "y"}}}, ["datasets.x", "source: none has no path"]),
        ({"datasets": {"x": {"source": "files"}}}, ["datasets.x", "source: files needs a path"]),
        (
            {"datasets": {"x": {"source": "files", "path": "y", "size": 3}}},
            ["datasets.x", "size is for images; with source: files leave it"],
        ),
        (
            {"datasets": {"digits": {"source": "files", "path": "y"}}},
            ["base.dataset", "source: files", "framework pytorch trains on images or token sequences"],
        ),
        ({"datasets": {"none": DIGITS}}, ["datasets.none", "which means no dataset"]),
        ({"base": {"dataset": "none"}}, ["base.dataset", "source: none", "framework pytorch trains on images or token sequences"]),
        ({"datasets": {"digits": TEXT}}, ["axes.model", "a network of Slipway's for images", "valid: another model, or a dataset of im"]),
        ({"axes": {"model": ["lstm"]}}, ["axes.model", "found 'lstm', a network of Slipway's for token sequences", "has none"]),
        (
            {"axes": {"model": ["lstm"]}, "base": {"layout": "nhwc"}, "datasets": {"digits": TEXT}},
            ["base.layout", "an order of the pixels of images"],
        ),
        (
            {"axes": {"model": ["gpt2-tiny"]}, "datasets": {"digits": {**TEXT, "sequence_length": 2000}}},
            ["axes.model", "a sequence of 2000 tokens, and it has 1024 positions"],
        ),
        (
            {"axes": {"model": ["lstm"]}, "base": {"framework": "theano"}, "datasets": {"digits": TEXT}},
            ["axes.model", "framework 'theano' does not support model 'lstm'"],
        ),
        ({"datasets": {"x": {**TEXT, "vocabulary": "letters"}}}, ["datasets.x.vocabulary", "letters"]),
        ({"datasets": {"x": {**TEXT, "buckets": [4]}}}, ["datasets.x", "exactly one is needed of sequence_length"]),
        ({"base": {"dataset": None}}, ["no dataset for these cells"]),
        ({"datasets": {"digits": {**DIGITS, "shard": 1}}}, ["datasets.digits.shard", "did you mean 'shards'"]),
        ({"datasets": {"digits": {**DIGITS, "splits": {"test": "a"}}}}, ["datasets.digits.splits.test", "text 'a'", "number"]),
        ({"datasets": {"digits": {**DIGITS, "splits": {"test": {"pth": "a"}}}}}, ["splits.test.pth", "valid: path"]),
        ({"datasets": {"digits": {**DIGITS, "splits": {"test": 2}}}}, ["datasets.digits.splits.test", "less than 1"]),
        ({"datasets": {"digits": {"source": "folder"}}}, ["datasets.digits", "needs a path"]),
        ({"datasets": {"again": DIGITS}, "axes": {"dataset": ["digits", "again"]}}, ["axes", "the same dataset under the name"]),
        ({"axes": {"model": ["resnet50"]}, "datasets": {"digits": {"source": "sklearn-digits", "size": 8}}}, []),
        ({"axes": {"model": ["alexnet"]}}, ["alexnet", "at least", "32x32", "size:"]),
        ({"datasets": {"digits": {"source": "sklearn-digits"}}}, ["lenet", "8x8", "size:"]),
        ({"base": {"precision": "fp16"}}, ["base.precision", "fp16", "GPUs only"]),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_wrong_studies(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    if not words:
        load(tmp_path, changed(**changes))  # a network that fits any size
        return
    message = message_of(tmp_path, changed(**changes))
    assert message.startswith(f"{tmp_path / 'study.yaml'}:"), message
    for word in words:
        assert word in message, message


def test_several_errors_come_together_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "study: S\ndatasets:\n  d: {source: foldr}\nbase: {nodes: 0}\naxes: {modle: [lenet]}\nzip: 3\n"
    lines = message_of(tmp_path, text).splitlines()
    assert [line.removeprefix(f"{tmp_path}/").split(": ")[:2] for line in lines] == [
        ["study.yaml:1", "study"],
        ["study.yaml:3", "datasets.d.source"],
        ["study.yaml:4", "base.nodes"],
        ["study.yaml:5", "axes.modle"],
        ["study.yaml:6", "zip"],
    ]


def test_very_many_errors_are_counted(tmp_path: Path) -> None:
    lines = message_of(tmp_path, changed(axes={"nodes": [-1] * 100})).splitlines()
    assert len(lines) == 21
    assert "80 more errors" in lines[-1]


def test_ten_million_cells_are_counted_not_made(tmp_path: Path) -> None:
    axes = {"batch_size": list(range(1, 1001)), "nodes": list(range(1, 101)), "seed": list(range(100))}
    message = message_of(tmp_path, changed(axes=axes))
    assert "found 10,000,000 cells (1 model x 1000 batch_size x 100 nodes x 100 seed), before exclude; valid: at most 100,000" in message


def test_an_excluded_combination_is_not_checked(tmp_path: Path) -> None:
    study = changed(axes={"batch_size": None, "global_batch_size": [64, 65]}, exclude=["global_batch_size == 65 and nodes == 2"])
    assert len(load(tmp_path, study).cells) == 3


def test_what_the_site_cannot_do_is_refused(tmp_path: Path) -> None:
    site = tmp_path / "tiny.yaml"
    site.write_text("storage: s\ncache: {path: c}\nscheduler: slurm\ngpus_per_node: 2\nwalltime: 1h\n")
    message = message_of(tmp_path, changed(base={"gpus_per_node": 4}), str(site))
    assert "base.gpus_per_node: found gpus_per_node 4; valid: at most 2" in message


def test_a_run_longer_than_a_job_must_be_able_to_go_on(tmp_path: Path) -> None:
    site = tmp_path / "tiny.yaml"
    site.write_text("storage: s\ncache: {path: c}\nscheduler: slurm\nwalltime: 1h\n")
    (note,) = [note for note in load(tmp_path, changed(limits={"walltime": "2h"}), str(site)).notes if "job" in note]
    assert note == "a run may take 2h00m, and a job of the site 'tiny' 1h00m: runs are saved before its end, and resume in another job"
    assert not [note for note in load(tmp_path, changed(limits={"walltime": "1h"}), str(site)).notes if "job" in note]
    assert (
        "limits.walltime: found 2h00m; valid: at most 1h00m, the walltime of the site 'tiny', since framework mine cannot resume from a "
        "checkpoint in another job"
    ) in message_of(
        tmp_path,
        changed(limits={"walltime": "2h"}, programs={"mine": {"command": ["x"]}}, base={"program": "mine"}, axes={"model": None}),
        str(site),
    )
