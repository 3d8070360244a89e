"""Tell Slipway how a training goes. One file without dependencies, for Python 3.6 and later, which is on the path of every run. To start a
script by hand, put it where your Python finds it; beside the script it would take the place of that of later versions of Slipway.

    import slipway_events

    run = slipway_events.start(model=network)
    for batch in run.steps(loader):
        loss = train_one_step(batch)
        run.loss(loss)

By hand, without Slipway around it, the loop above is the plain loop over the loader, and nothing is written. In a run the loader is
repeated until the steps that the study asks for are done, and each step is one line of `events-<rank>.jsonl`, as
docs/developers/framework-contract.md describes it.

The device is waited for at the ends of the measured window only, where the framework says how: PyTorch, JAX, TensorFlow, PaddlePaddle,
MXNet, CuPy. On a GPU of PyTorch, steps are timed by CUDA events; with other frameworks on a GPU the loss of a step is read when the next
one has been handed to the device, which waits for nobody that matters.
"""

import atexit
import contextlib
import errno
import hashlib
import json
import math
import os
import re
import resource
import sys
import time
import traceback
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Set, Tuple, Union

CHECKPOINT = "checkpoint.safetensors"
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
WORLD_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
DRIVES_ALL = "SLIPWAY_DRIVES_ALL"
"""The variable that is set for the one process which works for all ranks."""
FRAMEWORKS = ("torch", "tensorflow", "jax", "paddle", "mxnet", "chainer")
OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError", "ResourceExhaustedError")
"""Names of exceptions: torch need not be imported for its own."""
OUT_OF_MEMORY_WORDS = ("can't allocate memory", "CUDA out of memory", "RESOURCE_EXHAUSTED")
"""The words of PyTorch on the CPU and on a GPU, and of XLA for JAX and TensorFlow."""
DISK_ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EREMOTEIO, errno.ENODEV)
DISK_ERROR = re.compile(r"(\[Errno|\(os error) (%s)[\])]" % "|".join(map(str, DISK_ERRORS)))
"""Safetensors writes from Rust, and passes on the words of an error without its number."""
READ_ONLY = re.compile(r"Read-only file system(?: \(os error \d+\))?: '([^']*)'")
STARTED: "List[Run]" = []
"""The run of this process, from its start on."""
Counts = Dict[str, Optional[int]]
"""`samples`, and `tokens` where the program counts them. None: not known."""
Finished = Tuple[float, int, float, Optional[float], Counts, Optional[float]]
"""The moment of its end by the monotonic clock, number, seconds, seconds that it waited for its batches where that is known, what it had of
samples and tokens, loss."""
STEP_LINE = '{"event": "step", "time": %r, "monotonic_ns": %d, "step": %d, "measured": %s, "seconds": %r%s}\n'
"""Written as it stands: the json module takes several times as long."""
TOGETHER = 0.1
"""Seconds: steps that end within as much are written together."""
MAX_FIELDS = 16
"""A list of more parts is one of samples, not of fields that hold an array each."""
VALIDATION = "run.steps %s: each of its batches counts as a step of the training. Go through a validation by a plain loop"
PARTS = ("copy", "forward", "backward", "exchange", "optimizer")
"""The parts of a step that a program may tell."""
SIGN_OF_LIFE = 10.0
"""Seconds: an evaluation that goes on says so as often as this."""

Amount = Union[Callable[[Any], Optional[int]], int, None]


class LossNotFinite(ArithmeticError):
    """The loss of this rank is not a number, or infinite: what follows would be no training."""


class HostClock:
    """A step has ended when its loss can be read, and without one when the loop comes around. `finished`: those that have ended, until they
    are taken from here."""

    def __init__(self) -> None:
        self.last = 0.0
        self.skipped = 0.0
        """Seconds of evaluations since the last step ended, which are no part of the next one."""
        self.finished: List[Finished] = []

    def begin(self) -> None:
        """Begin the next step now, when the device has computed all before it."""
        synchronize()
        self.last = time.monotonic()

    def end(self, number: int, input_s: Optional[float], counts: Counts, loss: Any) -> None:
        value = None if loss is None else plain_number(loss)
        now = time.monotonic()
        self.finished.append((now, number, max(0.0, now - self.last - self.skipped), input_s, counts, value))
        self.last, self.skipped = now, 0.0

    def drain(self) -> None:
        """Wait until all steps that the program has done have ended."""


class LateClock(HostClock):
    """A clock for a device that computes while the program goes on: the loss of a step is read when the next step has been handed over."""

    def __init__(self) -> None:
        HostClock.__init__(self)
        self.waiting: Optional[Tuple[int, Optional[float], Counts, Any]] = None

    def end(self, number: int, input_s: Optional[float], counts: Counts, loss: Any) -> None:
        self.drain()
        if loss is None:
            HostClock.end(self, number, input_s, counts, None)
        else:
            self.waiting = (number, input_s, counts, loss)

    def drain(self) -> None:
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            HostClock.end(self, *waiting)


class CudaClock:
    """A clock for PyTorch on a GPU: an event marks each step's end on the stream, and the loss stays on the device until it is there.
    Nobody waits. Events and the places of losses in pinned memory are used again, since making them takes longer than using them."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.pending: Deque[Tuple[int, Optional[float], Counts, Any, Any, bool, float]] = deque()
        self.last: Any = None
        self.skipped = 0.0
        self.finished: List[Finished] = []
        self.free_events: List[Any] = []
        self.free_places: Dict[Any, List[Any]] = {}
        """Free places by the type of the numbers."""

    def begin(self) -> None:
        self.torch.cuda.synchronize()
        self.last = self.mark()

    def mark(self) -> Any:
        event = self.free_events.pop() if self.free_events else self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def end(self, number: int, input_s: Optional[float], counts: Counts, loss: Any) -> None:
        on_gpu = bool(getattr(loss, "is_cuda", False))
        if hasattr(loss, "detach"):
            loss = loss.detach()
        if on_gpu:
            free = self.free_places.setdefault(loss.dtype, [])
            place = free.pop() if free else self.torch.empty((), dtype=loss.dtype, pin_memory=True)
            loss = place.copy_(loss.reshape(()) if loss.dim() else loss, non_blocking=True)
        self.pending.append((number, input_s, counts, loss, self.mark(), on_gpu, self.skipped))
        self.skipped = 0.0
        self.pick_up()

    def drain(self) -> None:
        if self.pending:
            self.pending[-1][4].synchronize()
        self.pick_up()

    def pick_up(self) -> None:
        """Move the steps whose event has come to `finished`."""
        while self.pending and self.pending[0][4].query():
            number, input_s, counts, loss, event, ours, skipped = self.pending.popleft()
            seconds = max(0.0, self.last.elapsed_time(event) / 1000.0 - skipped)
            self.free_events.append(self.last)
            self.last = event
            value = None if loss is None else plain_number(loss)
            if ours:
                self.free_places[loss.dtype].append(loss)
            self.finished.append((time.monotonic(), number, seconds, input_s, counts, value))


class EventFile:
    """The events of one rank, a JSON object per line, which is written as it happens: every line is also the sign that this rank is alive.
    A line costs some 15 microseconds."""

    def __init__(self, out: str, rank: int) -> None:
        self.file = open(os.path.join(out, "events-%d.jsonl" % rank), "w", buffering=1)  # noqa: SIM115 - until the end of the process

    def emit(self, event: str, **fields: Any) -> None:
        """Write one line. Numbers must be finite: a file with NaN is no JSON."""
        line = {"event": event, "time": time.time(), "monotonic_ns": int(time.monotonic() * 1e9), **fields}
        self.file.write(json.dumps(line, allow_nan=False) + "\n")

    def phase(self, phase: str) -> None:
        self.emit("phase", phase=phase)


class Run:
    """One rank of a run; `active` is False where Slipway is not around."""

    def __init__(self, cell: Optional[Dict[str, Any]], out: str, facts: Dict[str, Any]) -> None:
        self.active = cell is not None
        self.cell = cell or {}
        self.out = out
        self.facts = facts
        self.rank = int(first_of(RANK_VARIABLES) or 0)
        self.world_size = int(first_of(WORLD_VARIABLES) or 1)
        self.drives = {"drives_all": True} if os.environ.get(DRIVES_ALL) else {}
        self.step = 0
        self.current: Any = None
        self.epoch_has_steps = False
        self.is_stepping = False
        self.looks_trained = True
        self.failed = False
        self.stopped = False
        self.clock: Any = None
        self.begun = 0.0
        self.train_s = 0.0
        self.window = [0.0, 0.0]
        self.measured_s = 0.0
        self.model: Any = None
        self.trained: Dict[str, str] = {}
        self.memory: Dict[str, Union[int, str]] = {}
        self.inside_epochs = False
        self.asked = 0.0
        self.input_s: Optional[float] = None
        self.under_way: Counts = {}
        self.parts: Dict[int, List[Tuple[str, Any, Any]]] = {}
        """Step -> name, begin and end of each of its parts, until the step is written."""
        self.written = 0.0
        self.stage = self.entered = "init"
        self.evaluation_begun: Optional[float] = None
        self.signed = 0.0
        """The moment of the last sign of life of the evaluation."""
        self.evaluations_s = 0.0
        self.evaluations_in_window_s = 0.0
        self.epoch: Optional[int] = None
        self.plan: Optional[Tuple[int, int, int]] = None
        self.events = EventFile(out, self.rank) if self.active else None
        self.phase("init")

    @property
    def args(self) -> Dict[str, Any]:
        """Return the `args` of the study for this cell; empty by hand."""
        return dict(self.cell.get("args") or {})

    @property
    def data(self) -> Optional[str]:
        """Return the directory of the staged dataset; None by hand."""
        return os.environ.get("SLIPWAY_DATA") if self.active else None

    @property
    def resume_from(self) -> Optional[str]:
        """Return the checkpoint to resume from, or None. Whoever loads it gives its step to `resume`."""
        return (os.environ.get("SLIPWAY_CHECKPOINT") or None) if self.active else None

    @property
    def total_steps(self) -> Optional[int]:
        """Return how many steps the study asks for, for libraries that want to know: `max_steps=run.total_steps or 1000`. None by hand."""
        return plan_steps(self.cell, self.step)[0] if self.active else None

    @property
    def checkpoint_wanted(self) -> bool:
        """Return True if the time of the run is nearly over. Rank 0 alone is asked; the others go on into their next exchange."""
        return self.active and self.rank == 0 and os.path.exists(os.environ.get("SLIPWAY_STOP", ""))

    def emit(self, event: str, **fields: Any) -> None:
        if self.events is not None:
            self.write_steps()
            self.events.emit(event, **fields)

    def phase(self, phase: str) -> None:
        """Begin init, warmup, train, eval or checkpoint: until a step ends, Slipway waits for this rank as long as the phase may take."""
        self.entered = phase
        self.emit("phase", phase=phase)

    def warning(self, message: str) -> None:
        self.emit("warning", message=message)

    def evaluation(
        self, split: str, loss: float, samples: Optional[int] = None, accuracy: Optional[float] = None, epoch: Optional[float] = None
    ) -> None:
        """Report the result of a whole split, and end the evaluation that `evaluating` began: what went by between them on this rank is in
        no step and no rate. `accuracy` is from 0 to 1; `epoch`: how many epochs were done; inside of `epochs` that is known."""
        if self.active and not math.isfinite(loss):
            raise LossNotFinite("the loss of the evaluation on %r is %r" % (split, float(loss)))
        accuracy = None if accuracy is None else float(accuracy)
        if accuracy is not None and not 0 <= accuracy <= 1:
            self.warning("run.evaluation takes an accuracy from 0 to 1, and leaves out %r" % accuracy)
            accuracy = None
        begun, epoch = self.evaluation_begun, self.epoch if epoch is None else epoch
        found = {
            "samples": samples,
            "accuracy": accuracy,
            "epoch": epoch,
            "eval_s": None if begun is None else time.monotonic() - begun,
        }
        told = {name: value for name, value in found.items() if value is not None}
        self.emit("eval", split=split, loss=float(loss), step=self.step, **told)
        if begun is not None:
            self.back()

    def evaluating(self) -> None:
        """Begin an evaluation, or go on with it. Each rank that evaluates calls it, and then `evaluation`."""
        if self.evaluation_begun is None:
            if self.clock is not None:
                self.clock.drain()
                synchronize()
            self.phase("eval")
            self.evaluation_begun = self.signed = time.monotonic()
        elif time.monotonic() - self.signed > SIGN_OF_LIFE:
            self.signed = time.monotonic()
            self.phase("eval")

    def back(self) -> None:
        """Resume the training with its next batch, after an evaluation or a checkpoint."""
        if self.evaluation_begun is not None and self.clock is not None and not self.all_done():
            synchronize()
            lasted = time.monotonic() - self.evaluation_begun
            self.clock.skipped += lasted
            self.evaluations_s += lasted
            if self.window[0] and not self.window[1]:
                self.evaluations_in_window_s += lasted
        self.evaluation_begun = None
        if self.entered != self.stage:
            self.phase(self.stage)
        self.wants_batch()

    def resume(self, step: int) -> None:
        """Resume before the first step: `step` is the first one that is not in the checkpoint."""
        if self.plan is not None:
            raise RuntimeError("resume() must be called before the first step")
        self.step = step

    def loss(self, value: Any) -> None:
        """Report the loss of the current step: a number, or a tensor of one element, which is read when that costs nothing."""
        self.current = value

    def epochs(self, count: int, first: int = 0) -> Iterator[int]:
        """Yield the numbers of the epochs, from `first` on: range(first, count) by hand, in a run as many as the steps of the study
        need."""
        number = first
        self.inside_epochs = True
        while number < count if not self.active else not self.all_done():
            before, self.epoch_has_steps = self.step, False
            self.epoch = number + 1
            yield number
            if self.active and self.step == before:
                raise RuntimeError("an epoch went by without a step: go through the loader by run.steps(loader)")
            number += 1
        self.inside_epochs = False

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Tell a part of the current step: `with run.part("forward"): ...`. A part that is told several times in a step counts with its
        sum; parts must not overlap. On a GPU of PyTorch its moments are events of the stream, which nobody waits for. Where steps are
        handed to another device, the program cannot tell how long they take there, and nothing is told."""
        if name not in PARTS:
            raise ValueError("part %r is not known; valid: %s" % (name, ", ".join(PARTS)))
        begun = self.moment()
        yield
        if begun is not None:
            self.parts.setdefault(self.step, []).append((name, begun, self.moment()))

    def moment(self) -> Any:
        """Return the moment by the clock that the steps are timed by, or None where they are not, or by the end of their loss alone."""
        if self.clock is None or isinstance(self.clock, LateClock) or self.all_done():
            return None
        return self.clock.mark() if isinstance(self.clock, CudaClock) else time.monotonic()

    def lasted(self, number: int) -> Dict[str, float]:
        """Return the seconds of each part of a step that has ended. Its events on a GPU are free again."""
        found: Dict[str, float] = {}
        events: Dict[int, Any] = {}
        for name, begin, end in self.parts.pop(number, ()):
            on_gpu = hasattr(begin, "elapsed_time")
            found[name] = found.get(name, 0.0) + (begin.elapsed_time(end) / 1000.0 if on_gpu else end - begin)
            if on_gpu:
                events.update({id(begin): begin, id(end): end})  # the end of a part may be the begin of the next one
        if events:
            self.clock.free_events += events.values()
        return found

    def steps(self, loader: Iterable[Any], samples: Amount = None, tokens: Amount = None) -> Iterator[Any]:
        """Yield the batches of `loader`, each of them one step of the training.

        `samples`, `tokens`: how many a batch has, or a function of the batch that returns it, None where that is not known; the tokens are
        those that the loss is made of. Without `samples` the rows of the batch are counted, see `rows`. By hand, and inside of `epochs`,
        the loader is gone through once; else it is repeated until the run has its steps.
        """
        if not self.active:
            for batch in loader:
                yield batch
            return
        if self.is_stepping:
            raise RuntimeError("run.steps was called in another run.steps loop: it is for the training loop only; validate in a plain loop")
        self.begin()
        total = self.totals()[0]
        same = None if samples is None or callable(samples) or callable(tokens) else self.counts(None, samples, tokens)
        self.is_stepping = True
        try:
            while not self.all_done():
                before = self.step
                self.check_training()
                self.wants_batch()
                for batch in loader:
                    self.input_s = time.monotonic() - self.asked
                    self.under_way = same or self.counts(batch, samples, tokens)  # before the body, which may take the batch to pieces
                    number = self.step
                    yield batch
                    if self.step == number:
                        self.step_done()
                    else:  # the program has reported a checkpoint of it
                        self.wants_batch()
                    if self.step >= total:
                        break
                if self.step == before:
                    raise RuntimeError("the loader gave no batch after %d of %d steps: used up, or a batch too large?" % (self.step, total))
                if self.inside_epochs:
                    return
        finally:
            self.is_stepping = False

    def check_training(self) -> None:
        """Warn once where what goes through `steps` looks like a validation: a second loop of one epoch, or steps without gradients."""
        torch, second = sys.modules.get("torch"), self.inside_epochs and self.epoch_has_steps
        no_gradients = torch is not None and hasattr(torch, "is_grad_enabled") and not torch.is_grad_enabled()
        self.epoch_has_steps = True
        if self.looks_trained and (second or no_gradients) and self.cell.get("mode") != "infer":
            self.looks_trained = False
            self.warning(VALIDATION % ("was begun twice in one epoch" if second else "gave batches while PyTorch computed no gradients"))

    def wants_batch(self) -> None:
        """Mark the start of the wait for a batch."""
        self.asked = time.monotonic()

    def has_batch(self) -> None:
        """Mark the end of the wait for a batch. Where a library does not tell when, nothing is known of the wait."""
        if self.asked:
            self.input_s = (self.input_s or 0.0) + time.monotonic() - self.asked
            self.asked = 0.0

    def batch_done(self, batch: Any, samples: Amount = None, tokens: Amount = None, loss: Any = None) -> None:
        """Count a computed batch; a step has several of them where gradients are accumulated, and their losses are parts of its own."""
        if self.active:
            for name, count in self.counts(batch, samples, tokens).items():
                before = self.under_way.get(name, 0)
                self.under_way[name] = None if before is None or count is None else before + count
            if loss is not None:
                self.current = loss if self.current is None else self.current + loss

    def step_done(self) -> None:
        """Count a step of the optimizer, with all batches since the last one. What is done here is done for every step, after its code and
        its values have left the caches: it is little, and `write_steps` does the rest for many steps at once."""
        plan, number = self.plan, self.step
        if plan is None or number >= plan[0]:
            return
        self.step = number + 1
        at_mark = self.step in plan
        if at_mark:  # the last step before it lasts until the device has computed it
            self.clock.drain()
            synchronize()
        self.clock.end(number, self.input_s, self.under_way, self.current)
        self.input_s, self.under_way, self.current = None, {}, None
        if at_mark:
            if self.step < plan[0]:
                self.at_mark()
            else:
                self.end()
        self.asked = time.monotonic()
        if self.asked - self.written > TOGETHER:
            self.write_steps()
            self.asked = time.monotonic()

    def needs(self, possible: float, setting: str) -> None:
        """Raise ValueError where the study asks for more than the `possible` steps after which a library ends by itself, because of this
        setting."""
        asked = self.totals()[0]
        if self.step + possible < asked:
            raise ValueError("the study asks for %d steps, and %s would end the training after %d: raise it" % (asked, setting, possible))

    def counts(self, batch: Any, samples: Amount, tokens: Amount) -> Counts:
        """Return what a batch has. Raises ValueError for what is no count."""
        samples = rows if samples is None else samples
        found: Counts = {"samples": whole_count("samples", samples(batch) if callable(samples) else samples, 1)}
        return found if tokens is None else dict(found, tokens=whole_count("tokens", tokens(batch) if callable(tokens) else tokens, 0))

    def totals(self) -> Tuple[int, int, int]:
        """Return the number of steps, the first one that is measured, and the one after the last that is."""
        return self.plan or (0, 0, 0)

    def all_done(self) -> bool:
        return self.plan is not None and self.step >= self.plan[0]

    def begin(self) -> None:
        if not self.active or self.plan is not None:
            return
        self.plan = plan_steps(self.cell, self.step)
        self.clock = make_clock(self.cell.get("device"))
        found = dict(detect_framework(), **self.drives, **self.facts)
        self.emit("run_start", rank=self.rank, world_size=self.world_size, hostname=os.uname().nodename, **found)
        if self.cell.get("profile") is not None:
            self.follow_profile()
        self.begun = time.monotonic()
        if self.step < self.plan[1]:
            self.go_on_to("warmup")
        self.clock.begin()
        self.at_mark()

    def follow_profile(self) -> None:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "profiler"):
            self.warning("no profile: it is made by the profiler of PyTorch, which this program has not imported")
            return
        import slipway_profile

        layers = self.model if hasattr(self.model, "named_modules") else None
        if layers is None:
            self.warning("the profile tells no layers: call slipway_events.start(model=...) with the network")
        slipway_profile.Profiler(torch, layers, self.cell, self.out, self.rank, self.totals()[1:]).follow(self.clock, self.step)

    def go_on_to(self, stage: str) -> None:
        """Begin this phase of the training, which comes back after an evaluation."""
        self.stage = stage
        self.phase(stage)

    def at_mark(self) -> None:
        """Begin or end the measured window: the device has computed all before, and all ranks are together."""
        _, first, end = self.totals()
        if self.step in (first, end) and self.window[0 if self.step == first else 1] == 0.0:
            self.clock.drain()
            if self.step == first:
                barrier()
                self.go_on_to("train")
            self.clock.begin()
            self.window[0 if self.step == first else 1] = time.monotonic()
            if self.step == end:
                self.memory = peak_memory(self.cell.get("device"))

    def write_steps(self) -> None:
        """Write a line for each step that has ended and has none yet, all together."""
        self.written = time.monotonic()
        if self.clock is None or self.events is None:
            return
        finished, self.clock.finished = self.clock.finished, []
        _, first, end = self.totals()
        since = time.time() - self.written
        lines: List[str] = []
        for ended, number, seconds, input_s, counts, loss in finished:
            told = "" if input_s is None else ', "input_s": %r' % min(input_s, seconds)
            if self.parts:
                told += "".join(', "%s_s": %r' % part for part in self.lasted(number).items())
            for name, count in counts.items():
                told += "" if count is None else ', "%s": %d' % (name, count)
            if loss is not None:
                if not math.isfinite(loss):
                    self.events.file.write("".join(lines))
                    raise LossNotFinite("the loss of step %d is %r" % (number, loss))
                told += ', "loss": %r, "loss_scope": "local"' % loss
            measured = first <= number < end
            if measured:
                self.measured_s += seconds
            lines.append(STEP_LINE % (since + ended, int(ended * 1e9), number, "true" if measured else "false", seconds, told))
        self.events.file.write("".join(lines))

    def end(self) -> None:
        self.clock.drain()
        self.write_steps()
        now = time.monotonic()
        if self.window[1] == 0.0:
            self.window[1] = now
            self.memory = peak_memory(self.cell.get("device"))
        self.train_s = now - self.begun - self.evaluations_s
        if self.model is not None:
            self.phase("checksum")
            self.add_checksum()
        self.go_on_to("eval")  # what follows, such as saving the network, may take longer than a step

    def add_checksum(self) -> None:
        try:
            found = checksum_of(self.model)
        except Exception as error:  # of whatever framework: the training is done, and only the comparison is lost
            self.warning("the parameters of the model cannot be read for a checksum: %s: %s" % (type(error).__name__, error))
            return
        self.trained = {} if found is None else {"checksum": found}

    def checkpoint(self, file: str, step: int, resumable: bool = True) -> None:
        """Report a checkpoint that lies in SLIPWAY_OUT, whole: `step` is the first one that is not in it. Where the current step is in it,
        that step is over: a program that ends now has reported its loss."""
        if self.active and resumable and os.path.realpath(file) != os.path.realpath(os.path.join(self.out, CHECKPOINT)):
            raise ValueError("a run resumes from $SLIPWAY_OUT/%s alone, whatever its format; this is %s" % (CHECKPOINT, file))
        if self.is_stepping and step == self.step + 1:
            if self.under_way:  # else a checkpoint before this one has ended the step
                self.step_done()
            step = self.step
        if self.clock is not None:
            self.clock.drain()
        self.emit("checkpoint", file=os.path.basename(file), bytes=os.path.getsize(file), step=step, resumable=resumable)

    def finish(self, **fields: Any) -> None:
        """Emit the end of the run, once; without a call when the interpreter ends well. `fields`: what is known of the trained network,
        such as norm=1.5, or a checksum of it, by which ranks are compared."""
        try:
            self.write_steps()
        except LossNotFinite as error:  # of a step in the last tenth of a second of a program that leaves early
            self.fail(error)
            raise
        if self.active and not self.stopped and not self.failed and self.all_done():
            self.stopped = True
            wall_s = max(0.0, self.window[1] - self.window[0] - self.evaluations_in_window_s) if self.window[0] else 0.0
            times = {"train_s": self.train_s, "window_wall_s": wall_s, "window_steps_s": self.measured_s}
            self.emit("run_stop", steps=self.step, **dict(times, **dict(self.memory, **dict(self.trained, **fields))))

    def fail(self, error: BaseException) -> None:
        """Emit the event `error`, once."""
        if self.active and not self.failed:
            self.failed = True
            try:
                self.write_steps()
            except LossNotFinite as earlier:
                error = earlier
            self.emit("error", kind=kind_of(error), message=("%s: %s" % (type(error).__name__, error))[:2000])


def start(model: Any = None, **facts: Any) -> Run:
    """Return this rank's run, the same one for every call.

    `model`: the network, of which a checksum is made after the last step, by which the ranks are compared. It is a model of PyTorch, Keras,
    TensorFlow or PaddlePaddle, or a function that returns one, or that returns the arrays of the parameters, as JAX wants it. Leave it out
    where ranks hold different parts of a network. `facts` stand in the event run_start: framework, framework_version, device, parameters
    (their count), provenance, flop_per_unit (floating-point operations of the model for one sample, or one token where the study's unit is
    that: forward and, in training, backward, without what is computed again), precision (fp32, tf32, bf16, fp16: of the matrices).
    """
    if model is not None and not (hasattr(model, "named_parameters") or hasattr(model, "trainable_variables") or callable(model)):
        words = "model must be a network of PyTorch, Keras or TensorFlow, or a function that returns the trained arrays, found %s"
        raise TypeError(words % type(model).__name__)  # such arrays as they are now would be those before the training
    if STARTED:
        STARTED[0].model = STARTED[0].model if model is None else model
        return STARTED[0]
    out = os.environ.get("SLIPWAY_OUT")
    cell = None
    if out and os.environ.get("SLIPWAY_CELL") and not os.environ.get("SLIPWAY_EVENTS"):  # else they are written for this program
        with open(os.environ["SLIPWAY_CELL"]) as file:
            cell = json.load(file)
    run = Run(cell, out or ".", facts)
    run.model = model
    STARTED.append(run)
    if run.active:
        if run.cell.get("profile") is not None:
            import slipway_profile

            slipway_profile.log_nccl(run.cell, run.out, run.rank)
        before = sys.excepthook

        def hook(kind: Any, value: Any, trace: Any) -> None:
            run.fail(value)
            before(kind, value, trace)

        sys.excepthook = hook
        atexit.register(run.finish)
    return run


def plan_steps(cell: Dict[str, Any], first: int) -> Tuple[int, int, int]:
    """Return the steps in all, the first one that is measured, and the one after the last measured one, when step `first` is the first to
    be done. The warm-up comes again after a resume."""
    warmup, measured = cell["steps"]["warmup"], cell["steps"]["measured"]
    total = cell["steps"].get("total") or warmup + measured
    return total, min(first + warmup, total), min(first + warmup + measured, total)


def make_clock(device: Optional[str]) -> Any:
    """Return the clock for what the program computes on."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return CudaClock(torch)
    return LateClock() if device == "cuda" and torch is None else HostClock()


def whole_count(name: str, told: Any, least: int) -> Optional[int]:
    """Return what was told of a batch: None, or a whole number, also one in a tensor or as 32.0. Any other would make another rate than
    that of what was done: ValueError."""
    if told is None:
        return None
    try:
        found = float(told)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found) or found < least or found != int(found):
        raise ValueError("%s of a batch must be a whole number from %d on, or None where nobody knows: found %r" % (name, least, told))
    return int(found)


def rows(batch: Any) -> Optional[int]:
    """Return the samples of a batch: the first dimension of its arrays, which are tensors of any framework, alone or in tuples, lists and
    dicts. None where these differ, or there is none."""
    try:
        found = set(first_dimensions(batch))
    except (TypeError, ValueError, IndexError, RuntimeError):  # of another kind, or of a size that is not known yet
        return None
    return found.pop() if len(found) == 1 and 0 not in found else None


def first_dimensions(batch: Any) -> List[int]:
    """Return that of each array in a batch; a single number has none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:  # a tensor would take `values` for a question about sparse ones
        return [int(shape[0])] if len(shape) else []
    parts = batch.values() if hasattr(batch, "values") else batch if isinstance(batch, (list, tuple)) else ()
    if len(parts) > MAX_FIELDS:
        raise ValueError("a list of samples")
    return [size for part in parts for size in first_dimensions(part)]


def plain_number(loss: Any) -> float:
    """Return the value of a number, or of a tensor of one element, whose gradients are of no interest here."""
    return float(loss.item() if hasattr(loss, "item") else loss)


def synchronize() -> None:
    """Wait until devices have computed what was handed to them, where the framework's own way to do so is known. A framework that is only
    imported is left alone, since it would take the memory of the GPU when it is asked."""
    names = ("torch", "jax", "paddle", "mxnet", "cupy", "tensorflow.python.eager.context")
    torch, jax, paddle, mxnet, cupy, eager = map(sys.modules.get, names)
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if jax is not None and hasattr(jax, "live_arrays") and getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None):
        jax.block_until_ready(jax.live_arrays())
    if eager is not None and eager.executing_eagerly() and getattr(eager.context(), "_initialized", False):
        sys.modules["tensorflow"].test.experimental.sync_devices()
    if paddle is not None and hasattr(getattr(paddle, "device", None), "synchronize") and paddle.device.get_device() != "cpu":
        paddle.device.synchronize()
    if mxnet is not None:
        mxnet.nd.waitall()
    if cupy is not None and cupy.cuda.is_available():
        cupy.cuda.runtime.deviceSynchronize()


def barrier() -> None:
    """Wait for all ranks, where the framework's own way to do so is known."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()


def checksum_of(model: Any) -> Optional[str]:
    """Return a text that two ranks have in common where their parameters are the same to the bit. Return None where a rank holds only a
    part of them (FSDP1, ZeRO-3, sharded arrays of JAX). DTensors are gathered from all.
    """
    digest, count = hashlib.sha256(), 0
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in getattr(model, "modules", tuple)()):
        return None
    for array in arrays_of(model):
        if hasattr(array, "ds_id") or not (getattr(array, "is_fully_addressable", True) or array.is_fully_replicated):
            return None
        digest.update(bytes_of(array))
        count += 1
    return digest.hexdigest() if count else None


def arrays_of(model: Any) -> Iterable[Any]:
    """Return the trained parameters of a model, in the same order on all ranks."""
    if hasattr(model, "named_parameters"):
        return [parameter for _, parameter in model.named_parameters()]
    if hasattr(model, "trainable_variables"):
        if hasattr(model, "jax_state_sync"):  # of Keras on JAX, whose fit() keeps them elsewhere meanwhile
            model.jax_state_sync()
        return list(model.trainable_variables)
    if callable(model):
        return arrays_of(model())
    jax = sys.modules.get("jax")
    if jax is not None:
        return [leaf for leaf in jax.tree_util.tree_leaves(model) if hasattr(leaf, "dtype")]
    return [model[name] for name in sorted(model)] if isinstance(model, dict) else list(model)


def bytes_of(array: Any) -> Any:
    """Return the numbers of an array of any framework as a buffer."""
    array = array.full_tensor() if hasattr(array, "full_tensor") else array
    array = array.detach().cpu() if hasattr(array, "detach") else array
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):  # of bfloat16 too, which numpy does not know
        import ctypes

        array = array.contiguous()
        return bytes((ctypes.c_char * (array.numel() * array.element_size())).from_address(array.data_ptr()))
    numpy = sys.modules["numpy"]
    return numpy.ascontiguousarray(array.numpy() if hasattr(array, "numpy") else array).reshape(-1).view("u1").data


def detect_framework() -> Dict[str, str]:
    """Return what of the frameworks is imported: its name and version."""
    for name in FRAMEWORKS:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            return {"framework": name, "framework_version": str(version)}
    return {}


def peak_memory(device: Optional[str]) -> Dict[str, Union[int, str]]:
    """Return bytes, and whose count they are, until now: of PyTorch's allocator on a GPU, on the CPU the resident set. Of another
    framework's memory on a GPU nothing is known here."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return {"max_memory_allocated_bytes": int(torch.cuda.max_memory_allocated()), "memory_source": "cuda_allocator"}
    if device == "cuda":
        return {}
    return {"max_memory_allocated_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "memory_source": "resident_set"}


def kind_of(error: BaseException) -> str:
    if isinstance(error, LossNotFinite):
        return "nan"
    names = {kind.__name__ for kind in type(error).__mro__}
    text = "".join(traceback.format_exception_only(type(error), error))
    refused = isinstance(error, OSError) and error.errno == errno.ENOMEM  # memory that Python maps, processes that it forks
    if refused or names & set(OUT_OF_MEMORY) or any(words in text for words in OUT_OF_MEMORY_WORDS):
        return "oom"
    return "storage" if _is_of_storage(error, names) else "error"


def _is_of_storage(error: BaseException, names: Set[str]) -> bool:
    """Return True if the staged dataset is not what it was, or a disk does not do what it should. To write to a place that it may only read
    is the program's own fault: of a disk is what keeps it from writing where it may."""
    read_only = READ_ONLY.search(str(error))
    if read_only is not None:
        out = os.path.realpath(os.environ.get("SLIPWAY_OUT", os.curdir))
        if not os.path.realpath(read_only.group(1)).startswith(os.path.join(out, "")):
            return False
    of_a_disk = isinstance(error, OSError) and error.errno in DISK_ERRORS
    return of_a_disk or "DatasetChanged" in names or DISK_ERROR.search(str(error)) is not None


def first_of(names: Iterable[str]) -> Optional[str]:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
