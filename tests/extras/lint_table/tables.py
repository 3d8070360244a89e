"""Tables that hold, made by a seed: their digits are rounded from numbers that nobody printed, as in real tables."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Made:
    """A table as text; `title`: what stands above it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def changed(self, row: int, column: str, text: str) -> "Made":
        at = self.header.index(column)
        return replace(self, rows=tuple((*cells[:at], text, *cells[at + 1 :]) if n == row else cells for n, cells in enumerate(self.rows)))

    def text(self, row: int, column: str) -> str:
        return self.rows[row][self.header.index(column)]


def efficiencies(random_state: random.Random, count: int) -> list[float]:
    """Falling from 1, by less than 12 points at each step."""
    found = [1.0]
    for _ in range(count - 1):
        found.append(found[-1] - random_state.uniform(0.001, 0.12))
    return found


def weak(seed: int) -> Made:
    """Batch per GPU constant, throughput, speed-up and efficiency in percent."""
    state = random.Random(seed)
    first, batch, one = state.choice((1, 2)), state.choice((16, 24, 32, 96)), state.uniform(20, 900)
    counts = [first * 2**step for step in range(state.randint(3, 6))]
    points = [(n, one * e * n / first, e) for n, e in zip(counts, efficiencies(state, len(counts)), strict=True)]
    rows = [
        (str(n), str(batch), str(batch * n), f"{rate:.{state.randint(0, 2)}f}", f"{rate / points[0][1]:.2f}", f"{100 * e:.1f} %", "A100")
        for n, rate, e in points
    ]
    header = ("GPUs", "Batch size / GPU", "Global batch", "Throughput (img/s)", "Weak scaling", "Efficiency", "GPU model")
    return Made(f"ResNet-50, {batch} images per GPU", header, tuple(rows))


def strong(seed: int) -> Made:
    """Global batch constant over nodes of 4 or 8 GPUs, steps of accumulation, minutes and speed-up by time, efficiency as a ratio."""
    state = random.Random(seed)
    each, batch, minutes = state.choice((4, 8)), state.choice((8, 16)), state.uniform(300, 3000)
    counts = [2**step for step in range(state.randint(3, 5))]
    steps = 2 ** (len(counts) + 1)
    efficient = efficiencies(state, len(counts))
    rows = [
        (
            str(n),
            str(each),
            str(batch),
            str(steps // n),
            str(batch * steps * each),
            f"{minutes / n / e:.0f}",
            f"{n * e:.2f}x",
            f"{e:.2f}",
            "sha256:1f",
        )
        for n, e in zip(counts, efficient, strict=True)
    ]
    header = ("num_nodes", "gpus_per_node", "micro_batch_size", "grad_accumulation_steps", "global_batch_size", "time to train (min)")
    return Made("Strong scaling of BERT", (*header, "speedup", "parallel efficiency", "image digest"), tuple(rows))


def precisions(seed: int) -> Made:
    """Two precisions beside each other, batches in one cell, two sequence lengths, as NVIDIA prints them."""
    state = random.Random(seed)
    rows = []
    for length, batches in ((128, (32, 64)), (512, (8, 16))):
        one, gain = state.uniform(40, 400), state.uniform(1.3, 3.5)
        points = list(zip((1, 4, 8), efficiencies(state, 3), efficiencies(state, 3), strict=True))
        rows += [
            (str(n), str(length), f"{batches[0]} and {batches[1]}", f"{one * n * a:.1f}", f"{one * gain * n * b:.1f}",
             f"{gain * b / a:.2f}", f"{n * a:.2f}", f"{n * b:.2f}")
            for n, a, b in points
        ]  # fmt: skip
    header = (
        "GPUs",
        "Sequence length",
        "Batch size / GPU (FP32 and FP16)",
        "Throughput - FP32 (sequences/sec)",
        "Throughput - mixed precision",
    )
    more = ("Throughput speedup (FP32 - mixed precision)", "Weak scaling - FP32", "Weak scaling - mixed precision")
    return Made("Training performance", (*header, *more), tuple(rows))


TABLES: Mapping[str, Callable[[int], Made]] = {f.__name__: f for f in (weak, strong, precisions)}


def markdown(table: Made) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (table.header, *table.rows)]
    return "\n".join([f"## {table.title}", "", lines[0], "|---" * len(table.header) + "|", *lines[1:], "", "Text below.", ""])


def bare_markdown(table: Made) -> str:
    """Without outer bars, with bold heads and numbers as code."""
    lines = [" | ".join(f"**{cell}**" for cell in table.header), " | ".join("--:" for _ in table.header)]
    return "\n".join([f"# {table.title}", *lines, *(" | ".join(f"`{cell}`" for cell in cells) for cells in table.rows)])


def separated(table: Made, sign: str = ",") -> str:
    def quoted(cells: tuple[str, ...]) -> str:
        return sign.join(f'"{cell}"' if sign in cell else cell for cell in cells)

    return "\n".join([f"# {table.title}", quoted(table.header), *map(quoted, table.rows), ""])


FORMS: Mapping[str, tuple[str, Callable[[Made], str]]] = {
    "markdown": ("t.md", markdown),
    "bare": ("t.md", bare_markdown),
    "csv": ("t.csv", separated),
    "tsv": ("t.tsv", lambda table: separated(table, "\t")),
}
