"""Say what each column of a table means, for reference pages and headings of the report; study_tables.py and others fill them."""

import re
from collections.abc import Collection, Iterable
from typing import Final

from base.field_docs import without_links
from workflow.report.table_type import Column
from workflow.study.model import CellKeys

EVERYWHERE: Final[dict[str, str]] = {
    "source": "results directory, if several are shown",
    "hardware": "CPU or GPU, if several directories are shown",
    "processes": "nodes x gpus_per_node",
    "runs": "measured runs / all runs",
    "allocations": "number of jobs, or starts of them, that the measured runs came from",
    "node_sets": "number of different sets of hosts that the measured runs were on",
    "samples_per_s": "samples over the wall time of the measured window (mode infer: sum of the ranks' own), geometric mean of the runs",
    "tokens_per_s": "tokens over the wall time of the measured window (mode infer: sum of the ranks' own), geometric mean of the runs",
    "rate_per_s": "samples or tokens per second of all processes",
    "speedup": "rate over the rate of the baseline",
    "efficiency": "speed-up over the growth in processes",
    "window_s": "wall time of the measured window of the slowest process, mean",
    "note": "why a number is missing",
    "step_p50_s": "median step of the slowest process, geometric mean of the runs",
    "input_wait_ratio": "time that a step waits for its batch, mean over ranks, over the mean step",
    "scaling": "`baseline`, `weak`, `strong` or `other`",
}
"""Columns that mean the same in each table."""


def everywhere(*keys: str) -> dict[str, str]:
    """Return the meanings of columns that mean the same in each table."""
    return {key: EVERYWHERE[key] for key in keys}


COLUMNS: Final[dict[str, dict[str, str]]] = {
    "speedup": {
        "scaling": "weak or strong",
        "batch": "what the row keeps constant: `32 each` (weak), `64 in all` (strong)",
        "processes_N": "`1 (baseline)`, `1.707 (85.4 %) ±0.034` or `0.82 (41 %) [0.37, 2.80]`: speed-up, efficiency, interval of the "
        "speed-up; or why there is no number. `against 1x2` names the baseline's nodes x processes per node if the row has several",
    },
    "times": {
        **everywhere("runs", "allocations", "node_sets"),
        "run_s": "from the start of the supervisor to the published record, mean",
        "training_s": "rank 0's steps, warm-up included; of a program that writes no events the whole program; mean",
        **everywhere("step_p50_s"),
        "step_p95_s": "95th percentile of the steps, geometric mean of the runs",
        **everywhere("window_s", "input_wait_ratio", "samples_per_s", "tokens_per_s", "speedup", "efficiency", "scaling"),
        "against": "the baseline of this number, if a line has several",
        "accuracy": "accuracy of the last evaluation, mean",
        "perplexity": "e to the power of the mean loss of the last evaluation, if tokens are counted",
        **everywhere("note"),
    },
    "failures": {
        "run": "id of the run",
        "attempt": "number of the attempt",
        "end": "an end of the page on errors, `missing`, `unreadable`, or `ok` if no rate could be measured",
        "reason": "why the run ended so",
        "rank": "the first rank that failed",
        "host": "the node of the first rank that failed",
        "exit": "exit code or signal of the first rank that failed",
        "last_lines": "the last lines of output of the first rank that failed",
        "files": "where the files of the run lie, below the results directory",
    },
    "budget": {
        "assign_s": "waiting for nodes; beside the sum",
        "stage_s": "start-up, and the dataset to the nodes",
        "train_s": "the program",
        "result_s": "stopping and collecting",
        "push_s": "copying to storage",
        "release_s": "dropping the lease",
        "run_s": "the whole run; the five steps before add up to it within 1 %, or it has the mark `budget`",
        "goodput_ratio": "training of rank 0 over the whole run, of means",
    },
    "hours": {
        "measured_process_h": "hours of measured runs times their processes",
        "failed_process_h": "hours of results without a measurement",
        "prevented_process_h": "hours of attempts that were cut off, also if a later one was measured",
        "repeated_process_h": "hours of results that a later result replaced",
        "aside_process_h": "hours of attempts that were delivered when another one had their number",
        "process_h": "sum of the other process hours",
        "gpu_h": "hours of all attempts times their GPUs; 0 on CPUs",
    },
    "utilisation": {
        "arithmetic": "precision of the matrices",
        "flop_per_unit": "FLOP of one sample or token",
        "flop_source": "source of `flop_per_unit`: `program`, or `model` for a network of Slipway's",
        "flop_per_s": "FLOP per second of one process",
        "peak_flop_per_s": "the most FLOP per second that its GPU can do, dense, by its vendor",
        "mfu": "model FLOP utilisation: `flop_per_s` over `peak_flop_per_s`",
        "gpu_busy_ratio": "part of the window in which a kernel ran on the GPUs, by nvidia-smi",
        "peak_memory_bytes": "the most memory of all processes and runs: of PyTorch's allocator on GPUs, the resident set on CPUs",
        "memory_left_bytes": "memory of the GPU without `peak_memory_bytes`; CUDA's context and the allocator's reserve take a part of it",
        "note": "why there is no `mfu`",
    },
    "bounds": {
        "bound": "`input`, `copy`, `communication`, `stragglers`, `host`, `compute`, or `not known`",
        "share": "share of the step of the part that bounds it",
        "no_input_factor": "how many times as fast the cell would be at most without waiting for input",
        "no_copy_factor": "how many times as fast the cell would be at most without copies to the device",
        "no_communication_factor": "how many times as fast the cell would be at most without communication that nothing hides",
        "no_stragglers_factor": "how many times as fast the cell would be at most without slower ranks",
        "no_host_factor": "how many times as fast the cell would be at most without the work of the host",
        "rate_without_per_s": "rate without the part that bounds it, in samples or tokens",
        "basis": "`estimate`, or which factors an `anchor` measured",
        **everywhere("note"),
    },
    "cost": {
        "run_process_h": "hours of one run times its processes",
        "run_gpu_h": "hours of one run times its GPUs",
        "energy_of": "what the energy is of: `GPUs`, `processors`, or both",
        "watts": "mean power in the measured window",
        "window_kwh": "energy of the measured window",
        "per_joule": "samples or tokens per joule",
        "epoch_gpu_h": "GPU hours of an epoch",
        "epoch_kwh": "energy of an epoch",
        "run_price": "price of the hours of one run, by `prices` of the site",
        "epoch_price": "price of the hours of an epoch",
        "epoch_energy_price": "price of the energy of an epoch",
        "currency": "currency of the prices",
        "note": "why something is not known",
    },
    "storage": {
        "basis": "size of the cell whose rate is taken",
        "sample_bytes": "bytes of the stored dataset over its samples",
        "samples_per_s": "samples per second of one process, as measured",
        **everywhere("input_wait_ratio"),
        "processes_N": "need of so many processes of a node in bytes per second: `samples_per_s / (1 - input_wait_ratio) * "
        "sample_bytes` each",
        "supply_bytes_per_s": "bytes per second that the place of the dataset gives, by `slipway dataset bench`",
        "fed": "number of processes for which `supply_bytes_per_s` is enough",
        "verdict": "whether `supply_bytes_per_s` is enough, in words",
    },
    "parts": {
        "input_s": "waiting for the batch",
        "copy_s": "moving the batch to the device",
        "forward_s": "forward pass and loss",
        "backward_s": "backward pass, without waiting for other ranks",
        "exposed_s": "communication that nothing hides: what even the last process waits in the exchange",
        "skew_s": "what the other processes wait beyond that, for a slower one",
        "optimizer_s": "update of the parameters",
        "other_s": "the rest, and parts that some run does not report",
        "step_s": "sum of the parts: the mean step",
        "residual_ratio": "`other_s` over `step_s`",
        "sent_bytes": "bytes that a process sends in a step for the exchange of gradients, to other nodes or within its own",
        "network_s": "least time for the bytes of a step that a node must send to others, 2 (m - 1)/m times the gradients for m nodes, by "
        "one connection of TCP; exposed communication is shorter if the backward hides a part of it",
    },
    "layers": {
        "layer": "name of the layer; `no profile`: the reason is in `kernel`",
        "forward_ms": "forward pass",
        "backward_ms": "backward pass, with what is computed again",
        "backward_data_ms": "gradient of the input, if the kernels show it",
        "backward_weights_ms": "gradient of the weights, if the kernels show it",
        "share": "share of the step: of the median measured step on a GPU, of the traced step on a CPU",
        "algorithm": "algorithm, by the name of the kernel",
        "kernel": "the longest kernel forward and backward; of a convolution on a CPU what oneDNN took",
        "forward_flop_per_s": "counted FLOP over the time of the forward pass; of networks of Slipway's only",
        "backward_flop_per_s": "counted FLOP over the time of the backward pass",
        "backward_data_flop_per_s": "counted FLOP over the time of the gradient of the input",
        "backward_weights_flop_per_s": "counted FLOP over the time of the gradient of the weights",
        "bytes": "bytes that the layer moves in both passes",
    },
    "prediction": {
        "batch": "what the line keeps constant",
        **everywhere("processes"),
        "nodes": "number of nodes that the prediction is for",
        "rate_per_s": "predicted rate",
        "efficiency": "predicted efficiency",
        "hours": "hours of `--samples` samples or tokens (a million)",
        "process_hours": "`hours` times processes, which are GPU hours if each process has one",
        "covered": "how many of the published series such an interval held",
        "measured": "the sizes that the prediction is made of, as nodes x processes of each",
        "note": "why nothing is predicted, or what the sizes inside of one node show",
    },
    "time-to-accuracy": {
        "target": "the accuracy",
        "reached": "how many runs of the cell with a result reached the accuracy, such as `2/3`",
        "epochs": "epochs until the accuracy was reached, mean over runs",
        "training_s": "seconds of training until the accuracy was reached, geometric mean",
        "best_accuracy": "mean of the best accuracy of each run",
        "note": "which runs did not reach the accuracy",
    },
    "precision": {
        "base": "precision and layout that the others are compared with: `fp32 nchw`, or the first there is",
        "PRECISION_LAYOUT_ratio": "rate over the rate of the base",
        "PRECISION_LAYOUT_final_loss": "loss of the last step, mean over runs",
    },
    "dlbench": {"batch_N": "`batchTime(totalTime)` in seconds: median step, and the program from start to end; or why there is no number"},
    "frameworks": {
        "processes_N": "`seconds of a batch (rate)`: median step, and the rate of all processes; how its runs ended, or `not in the study`",
    },
    "survey": {
        "ran_on": "`cuda` or `cpu`",
        "threads_per_process": "CPU threads of each process",
        **everywhere("step_p50_s", "rate_per_s"),
    },
    "framework-facts": {
        "framework": "name of the framework",
        "version": "the version that Slipway installs",
        "launcher": "how the ranks are started",
        "status": "`maintained`; `dormant`: no release comes any more; `ended`: its makers said so; `archived`: its repository can only "
        "be read",
        "release": "the last release",
        "released": "month or year of the last release",
        "licence": "SPDX name of the licence",
        "networks": "how many networks of Slipway's it trains",
        "verified_interfaces": "languages that the test in `verified_by` used",
        "verified_data_parallel": "data parallelism that the test in `verified_by` ran",
        "verified_model_parallel": "model parallelism that the test in `verified_by` ran",
        "verified_devices": "devices that the test in `verified_by` ran on",
        "verified_lmdb": "whether the framework read LMDB by itself in the test in `verified_by`",
        "claimed_interfaces": "languages, as `sources` say",
        "claimed_data_parallel": "data parallelism, as `sources` say",
        "claimed_model_parallel": "model parallelism, as `sources` say",
        "claimed_devices": "devices, as `sources` say",
        "claimed_lmdb": "whether it reads LMDB by itself, as `sources` say",
        "verified_by": "the test that ran the framework",
        "missing": "what the framework does not support, and why",
        "sources": "who says what is claimed",
        "note": "why the framework was never run",
    },
    "model-facts": {
        "variant": "which network of this name",
        "input": "size of the input",
        "conv": "convolutions in all",
        "conv_depth": "the most convolutions one behind the other",
        "linear": "fully connected layers",
        "parameters": "trainable parameters",
        "macs": "multiply-adds forward of one sample or token",
        "flop_per_step": "FLOP of the batch of one process: 2 for each multiply-add forward, and in training as many backward for "
        "weights and for inputs, without those of the images unless they are asked for",
        "activation_bytes": "bytes of what the backward pass keeps of that batch",
        "memory_bytes": "bytes of activations, weights, gradients, momentum and buckets, without workspace",
        "published_conv": "convolutions, by the publication in `source`",
        "published_conv_depth": "depth in convolutions, by the publication",
        "published_linear": "fully connected layers, by the publication",
        "published_parameters": "parameters, by the publication",
        "published_macs": "multiply-adds, by the publication",
        "source": "the publication",
    },
    "convolutions": {
        "layer": "name of the layer",
        "shape": "shape of the convolution",
        "direct_multiplications": "multiplications of the direct algorithm",
        "fft_multiplications": "multiplications by FFT",
        "winograd2_multiplications": "multiplications by Winograd, tiles of 2 x 2",
        "winograd4_multiplications": "multiplications by Winograd, tiles of 4 x 4",
        "gemm_workspace_bytes": "workspace of a matrix multiplication",
        "fft_workspace_bytes": "workspace of FFT",
        "winograd2_workspace_bytes": "workspace of Winograd, tiles of 2 x 2",
        "winograd4_workspace_bytes": "workspace of Winograd, tiles of 4 x 4",
        "cell": "of profile runs: the cell that was measured",
        "forward_s": "of profile runs: time of the forward pass",
        "backward_s": "of profile runs: time of the backward pass",
        "algorithm": "of profile runs: the algorithm that cuDNN or oneDNN took",
        "direct_per_s": "of profile runs: multiplications of the direct algorithm over `forward_s`",
        "kernel": "of profile runs: the kernel",
    },
    "scaling": {
        "cell": "id of the cell",
        **everywhere("processes"),
        "primary": "1 if other tables show this comparison",
        **everywhere("runs", "allocations", "node_sets"),
        "step_s": "median step, geometric mean of the runs",
        "step_low_s": "lower end of the interval of `step_s`",
        "step_high_s": "upper end of the interval of `step_s`",
        **everywhere("samples_per_s", "tokens_per_s", "window_s"),
        "partner": "the cell that it is compared with",
        **everywhere("scaling", "speedup", "efficiency"),
        "interval": "how the interval was made: `paired` or `welch`",
        "reason": "why there is no number",
    },
}
"""Table -> column -> its meaning. `processes_N` and the like stand for a column of each number."""


def describe_columns(table: str, columns: Iterable[Column], keys: Collection[str]) -> list[str]:
    """Explain the columns with these keys that have a value, by their titles, for the caption of a table."""
    found = [column for column in columns if column.key in keys and any(value is not None for value in column.values)]
    return [f"{column.title.partition(' [')[0]}: {meaning(table, column.key)}" for column in found]


_NUMBERED: Final = re.compile(r"(processes|batch)_[\d_]+(?:on_\d+_nodes)?")
_OF_PRECISION: Final = re.compile(r"[a-z]+\d+_[a-z]+_(ratio|final_loss)")
_END: Final = re.compile(r"_(low|high)\b")


def meaning(table: str, key: str) -> str | None:
    """Return what a column of a table means, or None for one that has no meaning here."""
    columns = COLUMNS.get(table, {})
    if found := columns.get(key) or EVERYWHERE.get(key):
        return found
    if key in CellKeys.model_fields:
        return without_links(CellKeys.model_fields[key].description or "")
    if numbered := _NUMBERED.fullmatch(key):
        return columns.get(f"{numbered[1]}_N")
    if ratio := _OF_PRECISION.fullmatch(key):
        return columns.get(f"PRECISION_LAYOUT_{ratio[1]}")
    whole = meaning(table, _END.sub("", key)) if _END.search(key) else None
    return whole and f"{'lower' if 'low' in key else 'upper'} end of the interval of `{_END.sub('', key)}`"
