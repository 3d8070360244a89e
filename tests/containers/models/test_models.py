"""Layer lists against published counts. Sources: tables.md section 3, goldens.md, frameworks.md section 2 of the design notes."""

import ast
import json
import sys
from collections.abc import Callable
from math import prod, sqrt
from pathlib import Path

import pytest

import containers.models
from base.errors import ConfigError
from containers.models import MODELS, build, build_for_tokens, has_dropout, of_tokens, reads_tokens, smallest_size
from containers.models.facts import count, depth, usual
from containers.models.layers import Layer, LayerList, without_dropout
from containers.models.memory import estimate_memory

ORACLES = [  # model, parameters, million multiply-adds, convolutions in all and in depth, fully connected; of its usual images
    ("lenet", 431_080, 2.293, 2, 2, 2),
    ("alexnet", 61_100_840, 714.2, 5, 5, 3),
    ("alexnet-caffe", 60_965_224, 724.4, 5, 5, 3),
    ("alexnet-caffe-ungrouped", 62_378_344, 1135.3, 5, 5, 3),
    ("resnet18", 11_689_512, 1814.1, 20, 17, 1),
    ("resnet50", 25_557_032, 4089.2, 53, 49, 1),
    ("resnet50-v1", 25_557_032, 3858.0, 53, 49, 1),
    ("resnet34", 21_797_672, 3663.8, 36, 33, 1),
    ("resnet101", 44_549_160, 7801.4, 104, 100, 1),
    ("resnet152", 60_192_808, 11513.6, 155, 151, 1),
    ("resnet152-v1", 60_192_808, 11282.4, 155, 151, 1),
    ("vgg16", 138_357_544, 15470.3, 13, 13, 3),
    ("fcn5", 14_205_962, 14.2, 0, 0, 4),
    ("resnet56-cifar", 855_770, 125.7, 57, 55, 1),
    ("googlenet", 6_998_552, 1582.7, 57, 21, 1),
    ("inception-v1", 6_624_904, 1498.4, 57, 21, 1),  # torchvision says: 6624904 parameters, 1.50 GFLOPS
    ("fcn5-synthetic", 10_020_874, 10.0, 0, 0, 4),  # 784, 2048, 2048, 2048, 10, by hand
    ("fcn8", 22_609_930, 22.6, 0, 0, 7),
]

OF_IMAGES = [name for name in MODELS if not reads_tokens(name)]


def of_kind(layers: tuple[Layer, ...] | list[Layer], kind: str) -> list[Layer]:
    return [layer for layer in layers if layer["kind"] == kind]


def example(name: str) -> tuple[Layer, ...]:
    if reads_tokens(name):
        return build_for_tokens(name, 7, 5).layers
    side = max(64, smallest_size(name))
    return build(name, 3, (side, side), 7).layers


@pytest.mark.parametrize(("name", "parameters", "mmacs", "convs", "in_depth", "linears"), ORACLES)
def test_the_published_counts_come_out(name: str, parameters: int, mmacs: float, convs: int, in_depth: int, linears: int) -> None:
    model = usual(name)
    assert model.parameters == parameters
    assert round(model.macs / 1e6, 3 if mmacs < 10 else 1) == mmacs
    assert (count(model.layers, "conv"), depth(model.layers), count(model.layers, "linear")) == (convs, in_depth, linears)


def test_lenet_of_digits_of_32_pixels_has_more_parameters() -> None:
    assert build("lenet", 1, (32, 32), 10).parameters == 656_080


TOKEN_ORACLES = [
    # tables.md section 3 has images only. Radford et al. 2019, as OpenAI's checkpoint and Hugging Face's gpt2 count it; appendix B of PaLM
    # for the multiply-adds: 6 N + 12 L H Q T FLOP per token and 6 of them a multiply-add forward, N the weights of the matrices
    ("gpt2-small", 50257, 1024, 124_439_808, 12 * 12 * 768**2 + 50257 * 768 + 2 * 12 * 768 * 1024),
    # nanoGPT's network of this size, whose config/train_shakespeare_char.py counts 0.8 M without biases and positions
    ("gpt2-tiny", 65, 64, 4 * (12 * 128**2 + 13 * 128) + (65 + 1024 + 2) * 128, 4 * 12 * 128**2 + 65 * 128 + 2 * 4 * 128 * 64),
    # dlbench, tools/tensorflow/rnn/lstm/lstm.py: hiddensize 256, numlayer 2, vocab_size 10000, BasicLSTMCell
    ("lstm", 10_000, 32, 2 * 10_000 * 256 + 10_000 + 2 * (512 * 1024 + 1024), 2 * 512 * 1024 + 256 * 10_000),
]


@pytest.mark.parametrize(("name", "vocabulary", "length", "parameters", "macs"), TOKEN_ORACLES)
def test_the_published_counts_of_networks_of_tokens_come_out(name: str, vocabulary: int, length: int, parameters: int, macs: int) -> None:
    model = build_for_tokens(name, vocabulary, length)
    assert (model.parameters, model.macs) == (parameters, macs)
    assert model.layers[0]["shape_out"] == [length]
    assert model.layers[-1]["shape_out"] == [length, vocabulary]


def test_what_a_network_reads_is_asked_for() -> None:
    assert build_for_tokens("gpt2-tiny", 300, 1024).parameters == build_for_tokens("gpt2-tiny", 300, 8).parameters
    with pytest.raises(ConfigError, match="a sequence of 1025 tokens, and it has 1024 positions"):
        build_for_tokens("gpt2-tiny", 300, 1025)
    with pytest.raises(ConfigError, match="'lenet' is for images, not for token ids; valid: lstm, gpt2-small, gpt2-tiny"):
        build_for_tokens("lenet", 300, 8)
    with pytest.raises(ConfigError, match="'lstm' reads token ids, and these are images; valid: lenet, "):
        build("lstm", 1, (8, 8), 10)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_the_smallest_size_fits_and_one_less_does_not(name: str) -> None:
    side = smallest_size(name)
    assert min(prod(layer["shape_out"]) for layer in build(name, 1, (side, side), 2).layers) >= 1
    build(name, 1, (side, side + 3), 1)
    if side > 1:
        with pytest.raises(ConfigError, match=f"the smallest that fits is {side}x{side}"):
            build(name, 1, (side + 5, side - 1), 2)
        with pytest.raises(ConfigError, match=f"the smallest that fits is {side}x{side}"):
            build(name, 1, (side - 1, side), 1)


@pytest.mark.parametrize("call", [lambda: build("lent", 1, (28, 28), 10), lambda: smallest_size("lent")])
def test_an_unknown_name_gets_the_closest_one(call: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="'lent' is not known.*did you mean 'lenet'"):
        call()


@pytest.mark.parametrize(("channels", "classes"), [(0, 10), (1, 0)])
def test_a_network_needs_channels_and_classes(channels: int, classes: int) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        build("lenet", channels, (28, 28), classes)


@pytest.mark.parametrize("name", MODELS)
def test_lists_are_plain_and_in_order(name: str) -> None:
    layers = example(name)
    assert json.loads(json.dumps(layers)) == list(layers)
    seen: list[str] = []
    for layer in layers:
        assert layer["name"] not in seen
        assert set(layer["inputs"]) <= set(seen)
        seen.append(layer["name"])
    read = {name for layer in layers for name in layer["inputs"]}
    assert set(seen) - read == {layers[-1]["name"]}, "every layer but the last has a reader"
    assert layers[0]["kind"] == "input"
    assert layers[-1]["shape_out"] == ([5, 7] if reads_tokens(name) else [7])


def test_starting_weights_are_wider_before_a_relu() -> None:
    limits = {layer["name"]: layer["initial_limit"] for layer in build("lenet", 1, (28, 28), 10).layers if "initial_limit" in layer}
    assert limits == {"conv1": sqrt(3 / 25), "conv2": sqrt(3 / 500), "fc1": sqrt(6 / 800), "fc2": sqrt(3 / 500)}
    by_name = {layer["name"]: layer for layer in build("resnet18", 3, (64, 64), 10).layers}
    assert by_name["conv1"]["initial_limit"] == sqrt(6 / 147), "through batch normalisation"
    assert by_name["stage1.block1.conv2"]["initial_limit"] == sqrt(3 / 576), "a sum comes before the ReLU"
    grouped = {layer["name"]: layer for layer in build("alexnet-caffe", 3, (227, 227), 10).layers}["conv2"]
    assert grouped["initial_limit"] == sqrt(6 / (48 * 25))


def test_layers_that_cannot_be_are_errors() -> None:
    net = LayerList(3, (8, 8))
    net.conv("a", 4, 3)
    with pytest.raises(ValueError, match="two layers are called 'a'"):
        net.relu("a")
    with pytest.raises(ValueError, match="cannot be added"):
        net.add("sum", "a", "input")
    with pytest.raises(ValueError, match="the images of a, input differ in size"):
        net.concat("both", "a", "input")
    with pytest.raises(ValueError, match="could begin behind the end"):
        net.ceil_pool("far", 2, 3)


def test_a_window_more_where_they_are_rounded_up() -> None:
    for extent, down, up in ((112, 55, 56), (113, 56, 56), (7, 3, 3), (8, 3, 4)):
        net = LayerList(1, (extent, extent))
        net.pool("down", 3, 2)
        net.continue_from("input")
        net.ceil_pool("up", 3, 2)
        assert (net.shape("down"), net.shape("up")) == ([1, down, down], [1, up, up])
    assert [layer["ceil"] for layer in build("googlenet", 3, (224, 224), 10).layers if "ceil" in layer] == [True] * 4
    assert not any("ceil" in layer for layer in build("resnet50", 3, (224, 224), 10).layers)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_a_network_without_its_dropout(name: str) -> None:
    layers = example(name)
    plain = without_dropout(layers)
    assert has_dropout(name) == (len(plain) < len(layers))
    assert not of_kind(list(plain), "dropout")
    names = {layer["name"] for layer in plain}
    assert all(set(layer["inputs"]) <= names for layer in plain)
    kept = [layer for layer in layers if layer["kind"] != "dropout"]
    assert [{**layer, "inputs": ()} for layer in plain] == [{**layer, "inputs": ()} for layer in kept]
    if not has_dropout(name):
        assert plain == layers


def test_memory_of_alexnet_at_batch_256() -> None:
    estimate = estimate_memory(build("alexnet-caffe", 3, (227, 227), 1000).layers, 256)
    assert estimate.total_bytes / 1e9 == pytest.approx(3, rel=0.25)  # goldens.md: about 3 GB
    assert estimate.parameter_bytes == 16 * 60_965_224


def test_memory_by_precision_and_mode() -> None:
    layers = build("resnet18", 3, (64, 64), 10).layers
    full, half = (estimate_memory(layers, 8, precision=precision) for precision in ("fp32", "bf16"))
    assert half.activation_bytes * 2 == full.activation_bytes
    assert half.parameter_bytes == full.parameter_bytes
    assert estimate_memory(layers, 16).activation_bytes == 2 * full.activation_bytes
    inference = estimate_memory(layers, 8, mode="infer")
    assert inference.parameter_bytes * 4 == full.parameter_bytes
    assert inference.activation_bytes < full.activation_bytes


def test_only_the_standard_library_is_needed() -> None:
    for path in Path(containers.models.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names) | {"base", "containers"}, path


@pytest.mark.parametrize(
    ("name", "channels", "side", "macs"),
    [("resnet50", 3, 224, 64 * 3 * 7 * 7 * 112 * 112), ("lenet", 1, 28, 20 * 5 * 5 * 24 * 24), ("fcn5", 1, 28, 28 * 28 * 2048)],
)
def test_the_first_layer_of_a_network_for_images_is_known(name: str, channels: int, side: int, macs: int) -> None:
    assert build(name, channels, (side, side), 10).first_macs == macs


@pytest.mark.parametrize("name", of_tokens())
def test_the_first_layer_of_a_network_of_tokens_is_trained_itself(name: str) -> None:
    assert build_for_tokens(name, 100, 16).first_macs == 0
