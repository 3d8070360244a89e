"""Facts of networks against the publications, and the closed forms of their convolutions against figures worked out before them."""

from dataclasses import replace

import pytest

from containers.models import MODELS, reads_tokens
from containers.models.convolutions import ALGORITHMS, Convolution, convolutions_of, cost
from containers.models.facts import NETWORKS, PUBLISHED, count, depth, layer_costs, usual


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_published_differs_where_it_is_known_to(name: str) -> None:
    """The paper's GoogLeNet has 1.43 G in Sze et al., and its layers have 1.58 G: both are shown."""
    model, published = usual(name), PUBLISHED[name]
    assert published.parameters == pytest.approx(model.parameters, rel=0.005)
    assert (published.macs == pytest.approx(model.macs, rel=0.02)) is (name != "googlenet")
    if published.conv is not None:
        assert (published.conv, published.conv_depth) == (count(model.layers, "conv"), depth(model.layers))
        assert published.linear == count(model.layers, "linear")


def test_every_network_has_an_input() -> None:
    assert set(PUBLISHED) <= set(NETWORKS)
    assert set(MODELS) < set(NETWORKS)
    assert all(usual(name).macs > usual(name).first_macs >= 0 for name in NETWORKS)


ALEXNET = {one.name: one for one in convolutions_of(usual("alexnet").layers)}
GIGA = [  # tables.md section 3, batch 128; its 20.8 for the FFT of conv1 is not this form's: 10 x 10 tiles of 32 need 21.6
    ("conv1", 9.0, 21.6, None, None),
    ("conv2", 28.7, 3.5, 11.1, 4.9),
    ("conv3", 14.4, 4.7, 7.4, 5.4),
]


@pytest.mark.parametrize(("name", "direct", "fft", "winograd2", "winograd4"), GIGA)
def test_the_multiplications_of_alexnet(name: str, direct: float, fft: float, winograd2: float | None, winograd4: float | None) -> None:
    found = {algorithm: cost(ALEXNET[name], 128, algorithm) for algorithm in ALGORITHMS}
    giga = {algorithm: one and round(one.multiplications / 1e9 + 1e-3, 1) for algorithm, one in found.items()}
    assert giga == {"direct": direct, "gemm": direct, "fft": fft, "winograd2": winograd2, "winograd4": winograd4}


def square(size: int, kernel: int, stride: int = 1, groups: int = 1) -> Convolution:
    out = (size + 2 * (kernel // 2) - kernel) // stride + 1
    pair = {"kernel": (kernel, kernel), "stride": (stride, stride), "padding": (kernel // 2, kernel // 2)}
    return Convolution(name="conv", channels_in=8, channels_out=12, size_in=(size, size), size_out=(out, out), groups=groups, **pair)


def multiplications(convolution: Convolution, batch_size: int, algorithm: str) -> int:
    found = cost(convolution, batch_size, algorithm)
    assert found is not None
    return found.multiplications


@pytest.mark.parametrize("size", range(2, 40))
def test_winograd_multiplies_less_than_direct(size: int) -> None:
    for algorithm, outputs in (("winograd2", 2), ("winograd4", 4)):
        if size >= outputs:
            assert multiplications(square(size, 3), 1, algorithm) < multiplications(square(size, 3), 1, "direct")
    assert multiplications(square(4 * size, 3), 1, "direct") * 16 == multiplications(square(4 * size, 3), 1, "winograd2") * 36
    assert multiplications(square(4 * size, 3), 1, "direct") * 36 == multiplications(square(4 * size, 3), 1, "winograd4") * 144


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", ["alexnet-caffe", "googlenet", "resnet50"])
def test_a_larger_batch_costs_more(algorithm: str, name: str) -> None:
    for convolution in convolutions_of(usual(name).layers):
        costs = [cost(convolution, batch, algorithm) for batch in (1, 2, 3, 64)]
        if costs[0] is None:
            assert costs == [None] * 4
            assert convolution.stride != (1, 1) or convolution.kernel == (1, 1)
            continue
        counts = [one.multiplications for one in costs if one is not None]
        assert counts == sorted(set(counts))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_groups_share_the_products_and_not_the_tiles(algorithm: str) -> None:
    whole, halves = (multiplications(square(28, 3, groups=groups), 4, algorithm) for groups in (1, 2))
    assert whole / 2 <= halves < whole
    if algorithm != "fft":
        assert halves * 2 == whole


def test_what_an_algorithm_cannot_compute() -> None:
    assert cost(square(28, 3, stride=2), 1, "winograd2") is None
    assert cost(square(28, 1), 1, "winograd4") is None
    assert cost(square(40, 33), 1, "fft") is None
    assert cost(replace(square(28, 3), kernel=(3, 1)), 1, "winograd2") is None
    assert cost(square(28, 3), 1, "direct") == replace(cost(square(28, 3), 1, "gemm"), workspace_bytes=0)  # type: ignore[type-var]


def test_direct_is_what_the_layer_list_counts() -> None:
    for name in ("alexnet-caffe", "googlenet", "resnet152", "vgg16"):
        layers = usual(name).layers
        of_layers = [layer["macs"] for layer in layers if layer["kind"] == "conv"]
        assert [multiplications(one, 1, "direct") for one in convolutions_of(layers)] == of_layers


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("input_gradient", [False, True])
def test_flop_of_the_layers_are_those_of_the_step(name: str, input_gradient: bool) -> None:
    model = usual(name)
    costs = layer_costs(model.layers, 4, input_gradient=input_gradient).values()
    units = 4 * (model.layers[0]["shape_out"][0] if reads_tokens(name) else 1)
    assert sum(one.forward_flop for one in costs) == units * 2 * model.macs
    backward = sum(one.backward_flop for one in costs)
    assert backward == units * 2 * (2 * model.macs - (0 if input_gradient else model.first_macs))
    alone = layer_costs(model.layers, 4, mode="infer").values()
    assert all(one.backward_flop == one.backward_bytes == 0 for one in alone)
    assert [one.forward_bytes for one in alone] == [one.forward_bytes for one in costs]


def test_flop_and_bytes_of_layers() -> None:
    """LeNet reads 28 x 28 numbers; conv1 has 20 filters of 25 and a bias each, and 24 x 24 outputs; conv2 50 of 500, and 8 x 8."""
    found = layer_costs(usual("lenet").layers, 10)
    assert (found["conv1"].forward_flop, found["conv1"].backward_data_flop) == (2 * 10 * 500 * 576, 0)
    assert found["conv1"].backward_weights_flop == found["conv1"].forward_flop
    images, filters, outputs = 10 * 784, 520, 10 * 20 * 576
    assert found["conv1"].forward_bytes == 4 * (images + filters + outputs)
    assert found["conv1"].backward_bytes == 4 * (images + filters + outputs)  # of weights alone
    assert found["conv2"].backward_bytes == 2 * found["conv2"].forward_bytes == 8 * (10 * 20 * 144 + 25_050 + 10 * 50 * 64)
    assert found["pool1"].backward_bytes == 4 * (2 * outputs + outputs // 4)  # reads images that it kept, writes their gradient
    assert (found["flatten"].forward_bytes, found["fc1"].backward_data_flop) == (0, found["fc1"].forward_flop)
    asked = layer_costs(usual("lenet").layers, 10, precision="bf16", input_gradient=True)["conv1"]
    assert asked.backward_data_flop == asked.forward_flop
    assert asked.backward_bytes == 2 * asked.forward_bytes == found["conv1"].forward_bytes


def test_flop_and_bytes_of_attention_and_of_an_embedding() -> None:
    """Both factors of attention are data; of 50,257 vectors of 768 numbers an embedding reads those of its 2 x 1,024 tokens."""
    layers = usual("gpt2-small").layers
    found = layer_costs(layers, 2)
    attention = found[next(layer["name"] for layer in layers if layer["kind"] == "attention")]
    assert (attention.backward_weights_flop, attention.backward_data_flop) == (0, 2 * attention.forward_flop)
    tokens, vectors = 2 * 1024, 2 * 1024 * 768
    assert found["wte"].forward_bytes == 4 * (tokens + 2 * vectors)
