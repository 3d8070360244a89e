"""Profile the steps of a PyTorch program, in a profile run alone (docs/reference/profile.md). One file for Python 3.6 and later, standard
library only: PyTorch is handed over by who has imported it.

A run has first its warm-up, in the last step of which oneDNN tells its algorithms; then steps with DistributedDataParallel's own log of
forward, backward and exchange; and then the steps whose operators are traced. None of them overlap, since one would lengthen what the
other tells.
"""

import gc
import importlib
import json
import os
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Tuple

TRACE = "trace.json.gz"
EXCHANGE = "exchange.json"
EXCHANGE_SCHEMA = "slipway.exchange/1"
STEP = "step:%d"
LAYER = "layer:%s"
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module")
"""Names that DistributedDataParallel, torch.compile and FSDP put before those of a network's own modules."""
ONEDNN_LOG = "onednn.log"
NCCL_LOG = "nccl-%d.log"
NCCL_SUBSYSTEMS = "INIT,GRAPH,TUNING"


def layer_names(model: Any) -> Dict[str, Any]:
    """Return the leaf modules of a network by the names that its own code gives them."""
    found = {}
    for name, module in model.named_modules():
        if next(module.children(), None) is None:
            parts = name.replace("/", ".").split(".")
            while len(parts) > 1 and parts[0] in WRAPPERS:
                del parts[0]
            found[".".join(parts) or type(module).__name__] = module
    return found


class Trace:
    """The trace of some steps, from when it is made until `write`: a range around each step and around each layer's forward call. Layers
    that are called again inside of themselves have a range each."""

    def __init__(self, torch: Any, model: Any, cuda: bool) -> None:
        self.torch = torch
        self.record = torch.profiler.record_function
        self.step: Any = None
        self.hooks = []  # type: List[Any]
        for name, module in layer_names(model).items() if model is not None else ():
            self.surround(LAYER % name, module)
        activities = [torch.profiler.ProfilerActivity.CPU] + ([torch.profiler.ProfilerActivity.CUDA] if cuda else [])
        self.profiler = torch.profiler.profile(activities=activities)
        self.profiler.start()

    def surround(self, name: str, module: Any) -> None:
        entered = []  # type: List[Any]

        def enter(*_: Any) -> None:
            entered.append(self.record(name))
            entered[-1].__enter__()

        def leave(*_: Any) -> None:
            if entered:
                entered.pop().__exit__(None, None, None)

        self.hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]

    def begin(self, number: int) -> None:
        self.end()
        self.step = self.record(STEP % number)
        self.step.__enter__()

    def end(self) -> None:
        step, self.step = self.step, None
        if step is not None:
            step.__exit__(None, None, None)

    def write(self, path: str) -> None:
        """End the trace, and write it as Kineto does, packed by gzip, whole or not at all."""
        self.end()
        self.profiler.stop()
        for hook in self.hooks:
            hook.remove()
        part = os.path.join(os.path.dirname(path), ".part-" + os.path.basename(path))
        self.profiler.export_chrome_trace(part)
        os.replace(part, path)


class OneDnnLog:
    """The log of oneDNN of one step, from when it is made until `write`. oneDNN writes it to standard output, so that goes to a file
    meanwhile, and what others wrote is passed on afterwards."""

    def __init__(self, torch: Any) -> None:
        self.verbose = torch.backends.mkldnn.verbose(1)
        sys.stdout.flush()
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `write`
        self.stdout = os.dup(1)
        os.dup2(self.file.fileno(), 1)
        self.verbose.__enter__()

    def write(self, path: str) -> None:
        self.verbose.__exit__(None, None, None)
        sys.stdout.flush()
        os.dup2(self.stdout, 1)
        self.file.seek(0)
        with self.file, open(path, "wb") as log, os.fdopen(self.stdout, "wb") as stdout:
            for line in self.file:
                (log if line.startswith(b"onednn_verbose") else stdout).write(line)


class ExchangeLog:
    """The log of the exchange of gradients of some steps, by DistributedDataParallel itself, which tells of a step when the next one is in
    its forward pass. Seconds on a GPU are those of its own stream."""

    def __init__(self, torch: Any, ddp: Any, cuda: bool) -> None:
        self.torch, self.ddp, self.cuda = torch, ddp, cuda
        self.steps = []  # type: List[Dict[str, Any]]
        self.told = {}  # type: Dict[int, Dict[str, Any]]
        self.moments = {}  # type: Dict[str, Any]
        ddp._set_ddp_runtime_logging_sample_rate(1)
        optimizer = importlib.import_module("torch.optim.optimizer")
        self.hooks = [
            ddp.register_forward_pre_hook(self.marking("forward")),
            ddp.register_forward_hook(self.tell),
            optimizer.register_optimizer_step_pre_hook(self.marking("optimizer")),
            optimizer.register_optimizer_step_post_hook(self.marking("updated")),
        ]

    def now(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def marking(self, name: str) -> Callable[..., None]:
        def mark(*_: Any) -> None:
            self.moments[name] = self.now()

        return mark

    def tell(self, *_: Any) -> None:
        """Keep what the log tells of the step before this one."""
        if self.steps:
            self.told.setdefault(len(self.steps) - 1, dict(self.ddp._get_ddp_logging_data()))

    def begin(self) -> None:
        now = self.now()
        if len(self.moments) == 4:
            self.steps.append(dict(self.moments, end=now))
        self.moments = {"begin": now}

    def end(self) -> List[Dict[str, float]]:
        """End the log, and return the parts of each step that it told of, in seconds."""
        for hook in self.hooks:
            hook.remove()
        if self.cuda:
            self.torch.cuda.synchronize()
        return [self.parts(self.steps[number], told) for number, told in sorted(self.told.items())]

    def parts(self, step: Dict[str, Any], told: Dict[str, Any]) -> Dict[str, float]:
        comm, overlap = (told.get(name, 0) / 1e9 for name in ("backward_comm_time", "backward_compute_comm_overlap_time"))
        found = {
            "step_s": self.between(step["begin"], step["end"]),
            "before_s": self.between(step["begin"], step["forward"]),
            "forward_s": told.get("forward_compute_time", 0) / 1e9,
            "backward_s": told.get("backward_compute_time", 0) / 1e9,
            "exchange_s": comm,
            "overlap_s": min(overlap, comm),
            "optimizer_s": self.between(step["optimizer"], step["updated"]),
        }
        return dict(found, own_exposed_s=found["exchange_s"] - found["overlap_s"])

    def between(self, one: Any, other: Any) -> float:
        return float(one.elapsed_time(other) / 1000.0 if self.cuda else other - one)


def mean_parts(ranks: List[List[Dict[str, float]]]) -> Dict[str, float]:
    """Return the means over all ranks and the steps that all of them tell of. The exchange that is exposed is the least of a step over the
    ranks: what a rank waits longer, it waits for a slower one (`skew_s`). `closing_ratio`: the parts over the step."""
    count = min(len(steps) for steps in ranks)
    if not count:
        return {"steps": 0, "ranks": len(ranks)}
    rows = [row for steps in ranks for row in steps[:count]]
    means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    exposed = sum(min(steps[index]["own_exposed_s"] for steps in ranks) for index in range(count)) / count
    own = means.pop("own_exposed_s")
    parts = means["before_s"] + means["forward_s"] + means["backward_s"] + own + means["optimizer_s"]
    closing = {"exposed_s": exposed, "skew_s": own - exposed, "other_s": means["step_s"] - parts, "closing_ratio": parts / means["step_s"]}
    return dict(means, steps=count, ranks=len(ranks), **closing)


def find_ddp(torch: Any, model: Any) -> Any:
    kind = torch.nn.parallel.DistributedDataParallel
    if model is None or isinstance(model, kind):
        return model
    return next((one for one in gc.get_objects() if type(one) is kind and one.module is model), None)


def log_nccl(cell: Dict[str, Any], out: str, rank: int) -> None:
    """Let NCCL write down the algorithms and transports that it takes, in a profile run on GPUs, before the ranks meet."""
    if cell.get("profile") is not None and cell.get("device") == "cuda":
        log = os.path.join(out, NCCL_LOG % rank)
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS=NCCL_SUBSYSTEMS, NCCL_DEBUG_FILE=log)


class Profiler:
    """What is done in the steps of a profile run, and when. `traced`: the first step that is traced, and the one after the last."""

    def __init__(self, torch: Any, model: Any, cell: Dict[str, Any], out: str, rank: int, traced: Tuple[int, int]) -> None:  # noqa: PLR0913
        self.torch, self.model, self.out, self.rank = torch, model, out, rank
        self.cuda = cell.get("device") == "cuda"
        first, self.end = traced
        self.first = first
        self.logged = first - int(cell["profile"]["logged"]) if cell.get("mode") == "train" else first
        self.onednn: Any = None
        self.log: Any = None
        self.trace: Any = None
        self.written = False

    def follow(self, clock: Any, number: int) -> None:
        """Begin and end steps, from `number` on, when the clock of the program does, which is asked at the same moments in every run."""
        following = [number]
        begin, end = clock.begin, clock.end

        def begin_too() -> None:
            self.step(following[0])
            begin()

        def end_too(issued: Any, *rest: Any) -> Any:
            found = end(issued, *rest)
            following[0] = getattr(issued, "step", issued) + 1
            if following[0] != self.first:  # else all ranks meet before it begins
                self.step(following[0])
            return found

        clock.begin, clock.end = begin_too, end_too

    def step(self, number: int) -> None:
        """Begin step `number`, before its batch is waited for; the step after the last one ends the trace."""
        if self.onednn is not None:
            onednn, self.onednn = self.onednn, None
            onednn.write(os.path.join(self.out, ONEDNN_LOG))
        if number == self.logged - 1 and self.rank == 0 and not self.cuda:
            mkldnn = self.torch.backends.mkldnn
            self.onednn = OneDnnLog(self.torch) if hasattr(mkldnn, "verbose") and mkldnn.is_available() else None
        if self.log is not None:
            self.log.begin()
        if number == self.logged < self.first and self.log is None:
            self.start_log()
        if number == self.first and self.trace is None:
            self.write_log()
            if self.rank == 0:
                self.trace = Trace(self.torch, self.model, self.cuda)
            if self.meets_others():
                self.torch.distributed.barrier()  # nobody waits in a step for the start of the profiler
        if self.trace is not None and number < self.end:
            self.trace.begin(number)
        if number == self.end:
            self.finish()

    def start_log(self) -> None:
        if not self.meets_others():
            return  # one rank exchanges nothing, and the log would tell of an exchange all the same
        ddp = find_ddp(self.torch, self.model)
        if ddp is not None:
            self.log = ExchangeLog(self.torch, ddp, self.cuda)
            self.log.begin()

    def meets_others(self) -> bool:
        distributed = self.torch.distributed
        return bool(distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)

    def write_log(self) -> None:
        """Gather the parts of all ranks, and write their means from rank 0. All ranks make this call, or none."""
        log, self.log = self.log, None
        if log is None:
            return
        told = [None] * self.torch.distributed.get_world_size()  # type: List[Any]
        self.torch.distributed.all_gather_object(told, log.end())
        if self.rank != 0:
            return
        last = log.told[max(log.told)] if log.told else {}
        sizes = str(last.get("rebuilt_bucket_sizes") or last.get("bucket_sizes") or "")
        found = dict(mean_parts(told), schema=EXCHANGE_SCHEMA, backend=str(last.get("backend_name", "")))
        found["bucket_bytes"] = [int(size) for size in sizes.split(",") if size.strip().isdigit()]
        found["comm_hook"] = last.get("comm_hook") or None
        with open(os.path.join(self.out, EXCHANGE), "w") as file:
            json.dump(found, file, sort_keys=True, allow_nan=False)

    def finish(self) -> None:
        if self.trace is not None and not self.written:
            self.written = True
            if self.cuda:
                self.torch.cuda.synchronize()
            self.trace.write(os.path.join(self.out, TRACE))
