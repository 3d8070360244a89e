"""Networks that read token ids, trained by the programs: the same alone and in two ranks, in windows and in buckets, and after a resume."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from containers.frameworks import OWN, load_framework
from tests.containers.frameworks.programs import distance, parameters, stopped_and_resumed
from tests.containers.frameworks.test_same_network import pytest_generate_tests

__all__ = ["pytest_generate_tests"]
pytestmark = pytest.mark.slow
Run = Callable[..., Any]
OTHERS = [name for name in OWN if "gpt2-tiny" in load_framework(name).supports.models and name != "pytorch"]
LEVEL_A = ("jax", "tensorflow", "keras")
IN_CI = [{"framework": name} for name in LEVEL_A]
MORE = [{"framework": name} for name in OTHERS if name not in LEVEL_A] + [
    {"framework": "keras", "backend": name} for name in ("jax", "torch")
]
CELLS = {"gpt2-tiny": {"data": "text", "model": "gpt2-tiny"}, "lstm": {"data": "lines", "model": "lstm"}}
CASES = {
    "test_it_learns_the_same_alone_and_in_two_ranks_of_every_framework": (
        "model,ways",
        [
            pytest.param("gpt2-tiny", [{}, {"strategy": "fsdp2"}, *IN_CI], id="gpt2-tiny"),  # whose embedding makes the logits too
            pytest.param("gpt2-tiny", MORE, id="gpt2-tiny-more", marks=pytest.mark.long),
            pytest.param("lstm", [{}, *IN_CI, *MORE], id="lstm", marks=pytest.mark.long),
        ],
    ),
    "test_a_run_that_was_stopped_goes_on_as_if_nothing_had_been": (
        "model,framework",
        [("gpt2-tiny", "pytorch"), *(pytest.param(model, name, marks=pytest.mark.long) for model in CELLS for name in OTHERS)],
    ),
}
OPTIMIZER = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.001}


def test_it_learns_the_same_alone_and_in_two_ranks_of_every_framework(
    run_program: Run, reference: Run, model: str, ways: list[dict[str, str]]
) -> None:
    keys = {**CELLS[model], "global_batch_size": 8, "optimizer": OPTIMIZER, "steps": {"warmup": 2, "measured": 18}}
    like = reference(1, **keys)
    assert like.exit_codes == [0], like.stderr
    losses = like.losses()
    assert min(losses) < 0.9 * losses[0]
    for way in ways:
        done = run_program(2, **keys, **way)
        assert done.exit_codes == [0, 0], done.stderr
        assert done.losses()[:5] == pytest.approx(losses[:5], rel=1e-5)
        assert distance(parameters(done), parameters(like)) < 1e-4
        assert done.of("eval")[0]["loss"] == pytest.approx(like.of("eval")[0]["loss"], rel=1e-4)
        assert done.of("eval")[0]["samples"] == like.of("eval")[0]["samples"]
        assert done.of("run_start")[0]["parameters"] == like.of("run_start")[0]["parameters"]
        both = [[step["tokens"] for step in done.of("step", rank)] for rank in range(2)]
        assert [sum(told) for told in zip(*both, strict=True)] == [step["tokens"] for step in like.of("step")]
    told = {step["tokens"] for step in like.of("step")}
    lengths = {step["length"] for step in like.of("step")}
    if model == "gpt2-tiny":
        assert (told, lengths) == ({8 * 16}, {16})
    else:
        assert len(told) > 1
        assert lengths == {4, 9}
        assert all(step["tokens"] <= step["samples"] * step["length"] for step in like.of("step"))


def test_a_run_that_was_stopped_goes_on_as_if_nothing_had_been(run_program: Run, tmp_path: Path, model: str, framework: str) -> None:
    keys = {**CELLS[model], "framework": framework, "global_batch_size": 4, "steps": {"warmup": 2, "measured": 48}}
    whole = run_program(1, **keys)
    stopped_and_resumed(run_program, tmp_path, whole, **keys)


def test_bf16_inference_and_a_dataset_of_another_kind(run_program: Run) -> None:
    keys = {**CELLS["gpt2-tiny"], "global_batch_size": 4, "mode": "infer", "steps": {"warmup": 0, "measured": 2}}
    done, like = (run_program(1, precision=precision, **keys) for precision in ("bf16", "fp32"))
    assert done.exit_codes == [0], done.stderr
    assert done.losses() == pytest.approx(like.losses(), rel=1e-2)
    layers = [{"name": "input", "kind": "input", "shape_out": [9]}, {"name": "out", "kind": "input", "shape_out": [9, 3]}]
    wrong = run_program(1, **{**keys, "model_layers": layers})
    assert wrong.exit_codes == [1]
    assert "the layer list goes from [9] to [9, 3], the dataset asks for [16] to [16, 257]" in wrong.of("error")[0]["message"]


@pytest.mark.parametrize(
    ("framework", "variables", "compiled"),
    [
        ("jax", {"JAX_LOG_COMPILES": "1"}, r"(\d+\.\d+) .*Finished XLA compilation"),
        ("tensorflow", {"TF_CPP_VMODULE": "meta_optimizer=1"}, r"00:00:(\d+\.\d+) .*Starting optimization for grappler item"),
    ],
    ids=["jax", "tensorflow"],
)
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_every_length_is_compiled_before_the_first_step(  # noqa: PLR0913 - all are the test's
    run_program: Run, reference: Run, tmp_path: Path, lib: Path, mode: str, framework: str, variables: dict[str, str], compiled: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import logging\nlogging.basicConfig(format='%(created)f %(message)s')\n")
    variables = {**variables, "PYTHONPATH": f"{tmp_path}:{lib}"}
    keys = {**CELLS["lstm"], "global_batch_size": 8, "mode": mode, "optimizer": OPTIMIZER, "steps": {"warmup": 0, "measured": 12}}
    done = run_program(1, framework=framework, variables=variables, **keys)
    assert done.exit_codes == [0], done.stderr
    assert done.losses()[:5] == pytest.approx(reference(1, **keys).losses()[:5], rel=1e-5)  # and nothing was learned by it
    assert {step["tokens"] <= 8 * 4 for step in done.of("step")} == {True, False}  # both lengths came
    moments = [float(found) for found in re.findall(compiled, done.stderr[0])]
    (begin,) = (phase["time"] for phase in done.of("phase") if phase["phase"] == "train")
    assert len([moment for moment in moments if moment < begin]) >= 2
    assert [moment for moment in moments if begin <= moment <= done.of("step")[-1]["time"]] == []
