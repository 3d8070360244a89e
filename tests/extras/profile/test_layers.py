"""What belongs to which layer, in traces made by hand. A step of a processor has 100 microseconds."""

import pytest

from tests.extras.profile.traces import Events, layers, times
from workflow.report.table_type import significant


def closes(events: Events) -> None:
    found = events.profile()
    assert found.worked_ms - found.overlap_ms + found.idle.ms == pytest.approx(found.step_ms)


def test_an_operator_of_a_processor_counts_without_those_in_it_and_a_layer_without_those_in_it() -> None:
    events = Events()
    for step in range(2):
        at = 100 * step
        events.range(f"step:{step}", at, 100)
        events.range("layer:a", at + 10, 50)
        events.forward("aten::linear", at + 15, 10, 1 + step)
        events.forward("aten::addmm", at + 17, 6, 1 + step)
        events.range("layer:a.b", at + 30, 20)
        events.forward("aten::relu", at + 32, 10, 11 + step)
        events.backward("ReluBackward0", at + 70, 5, 11 + step)
        events.backward("AddmmBackward0", at + 80, 7, 1 + step)
    found = events.profile()
    assert times(found) == {"a": (30, 7), "a.b": (20, 5)}
    assert layers(found)["a"].forward_kernel == "aten::addmm"
    assert (found.steps, found.device, found.idle.ms) == (2, "cpu", 0)
    assert found.other["host"] == pytest.approx(0.038), "what lies between the operators is the program's own"
    closes(events)


def test_a_layer_that_is_called_twice_has_both_and_only_what_lies_in_steps() -> None:
    events = Events()
    for start in (-50, 0, 30, 150):
        events.range("layer:a", start, 20)
        events.forward("aten::mm", start + 5, 10, 100 + start)
        events.backward("MmBackward0", start + 22, 4, 100 + start)
    events.range("ProfilerStep#7", 0, 100)
    assert times(events.profile()) == {"a": (40, 8)}
    closes(events)


def test_what_checkpointing_computes_again_is_of_the_backward_of_the_layer() -> None:
    events = Events()
    events.range("step:0", 0, 100)
    events.forward("CheckpointFunction", 5, 25, 4)
    events.range("layer:a", 10, 15)
    events.backward("CheckpointFunctionBackward", 40, 50, 4)
    events.range("layer:a", 45, 20)
    events.forward("aten::mm", 50, 10, 5)
    events.backward("MmBackward0", 70, 15, 5)
    found = events.profile()
    assert times(found) == {"a": (15, 35)}
    assert found.other["functional"] == pytest.approx(0.025)
    closes(events)


def test_the_last_operator_with_a_sequence_number_made_the_node() -> None:
    """Operators without a node show the number that the next node gets."""
    events = Events()
    events.range("step:0", 0, 100)
    events.range("layer:a", 0, 10)
    events.forward("aten::size", 2, 3, 9)
    events.range("layer:b", 20, 10)
    events.forward("aten::mm", 22, 3, 9)
    events.backward("MmBackward0", 50, 5, 9)
    events.backward("torch::autograd::AccumulateGrad", 60, 2, None)
    events.range("layer:a", 80, 10)
    events.forward("aten::mm", 82, 3, 9)  # after the backward: of another graph
    assert times(events.profile()) == {"a": (20, 0), "b": (10, 7)}


def test_rows_beside_the_layers() -> None:
    events = Events()
    events.range("step:0", 0, 200)
    events.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 10)
    events.add("cpu_op", "aten::stack", 2, 3)
    events.range("Optimizer.zero_grad#SGD.zero_grad", 10, 5)
    events.forward("aten::add", 20, 7, 1)
    events.forward("aten::cross_entropy_loss", 30, 8, 2)
    events.backward("NllLossBackward0", 40, 6, 2)
    events.backward("AddBackward0", 50, 4, 1)
    events.backward("torch::autograd::AccumulateGrad", 55, 9, None)
    events.add("cpu_op", "torch::distributed::reducer::mul_out", 57, 3)
    events.range("gloo:all_reduce", 60, 30, thread=2)
    events.add("cpu_op", "aten::_foreach_add_", 100, 11)
    events.backward("ViewBackward0", 120, 2, 77)
    assert events.profile().other == pytest.approx(
        {
            "input": 0.010,
            "optimizer": 0.016,
            "loss": 0.014,
            "functional": 0.017,
            "communication": 0.033,
            "unattributed": 0.002,
            "host": 0.112,
        }
    )
    assert events.profile().overlap_ms == pytest.approx(0.004)
    closes(events)


def gpu() -> Events:
    """Two steps of which the GPU works after the processor has ended them."""
    events = Events()
    for step, at in enumerate((0, 100)):
        events.range(f"step:{step}", at, 50)
        events.range("layer:a", at + 5, 10)
        events.forward("aten::mm", at + 6, 8, step)
        events.kernel(at + 7, at + 20, 60)
        events.backward("MmBackward0", at + 20, 10, step, thread=2)
        events.kernel(at + 22, at + 82, 30, "wgrad_kernel", thread=2)
        events.kernel(at + 24, at + 102, 10, "ncclDevKernel_AllReduce", thread=2, stream=8)
        events.kernel(at + 40, at + 112, 5, "Memcpy HtoD (Pageable -> Device)", bytes=1000)
    return events


def test_kernels_belong_to_the_step_and_the_layer_of_their_launch() -> None:
    found = gpu().profile()
    assert times(found) == {"a": (60, 30)}
    assert found.other == pytest.approx({"optimizer": 0, "loss": 0, "functional": 0, "communication": 0.010, "copies": 0.005})
    assert (layers(found)["a"].backward_data_ms, layers(found)["a"].backward_weights_ms) == (0, 0.030)
    assert found.kernel_ms == pytest.approx(0.100)
    assert found.overlap_ms == pytest.approx(0.010)
    assert found.step_ms == pytest.approx((217 - 0) / 2000)  # of the first step the window ends when the second begins
    assert found.idle.edges_ms == pytest.approx(0.010)
    assert found.idle.host_wait_ms == 0
    assert found.idle.kernel_wait_ms == pytest.approx(0.0035)
    closes(gpu())


def test_a_kernel_without_a_launch_in_the_trace_belongs_to_nothing_and_one_before_the_steps_to_none() -> None:
    events = gpu()
    events.kernel(-20, 5, 10)
    events.add("kernel", "nobody's", 140, 4, 99, stream=7)
    found = events.profile()
    assert found.other == pytest.approx({**gpu().profile().other, "unattributed": 0.002})
    assert found.kernel_ms == pytest.approx(gpu().profile().kernel_ms + 0.002)
    closes(events)


def test_a_trace_without_steps_is_one_and_says_it() -> None:
    events = Events()
    events.range("layer:a", 10, 20)
    events.forward("aten::mm", 12, 10, 1)
    found = events.profile()
    assert (found.steps, found.step_ms) == (0, pytest.approx(0.020))
    assert "no range is called step:<n>" in found.notes[0]
    closes(events)


def test_ranges_of_the_program_are_preferred_and_nested_ones_are_no_steps() -> None:
    events = Events()
    events.range("ProfilerStep#0", 0, 300)
    for step in range(2):
        events.range(f"step:{step}", 100 * step, 100)
        events.range("step:9", 100 * step + 10, 20)
        events.add("cpu_op", "aten::mm", 100 * step + 20, 50)
    assert (events.profile().steps, events.profile().step_ms) == (2, pytest.approx(0.1))


@pytest.mark.parametrize(("megabytes", "ms", "gb_per_s", "shown"), [(123.256, 221.538, 0.5564, "0.556"), (258.46, 86.024, 3.0045, "3.00")])
def test_copies_of_the_published_comparison(megabytes: float, ms: float, gb_per_s: float, shown: str) -> None:
    """123.256 MB in 221.538 ms are 556 MB/s, and 258.46 MB in 86.024 ms 3.005 GB/s, which is printed there as MB/s."""
    events = Events()
    events.range("step:0", 0, 1000 * ms)
    for number in range(3):
        size = round(megabytes * 1e6 / 4) * (2 if number else 1)
        events.kernel(0, 1000 * ms * number / 4, 1000 * ms * (2 if number else 1) / 4, "Memcpy HtoD (Pageable -> Device)", bytes=size)
    (copy,) = events.profile().copies
    assert (copy.invocations, copy.pinned) == (3, False)
    assert copy.gb_per_s == pytest.approx(gb_per_s, rel=1e-3)
    assert significant(copy.gb_per_s) == shown
