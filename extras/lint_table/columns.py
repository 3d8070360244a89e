"""Find out what the columns of a table are, by the words and units of their heads and the units in their cells."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from functools import cached_property
from typing import Final

from extras.lint_table.numbers import BYTE_RATES, SECONDS, Interval, Printed, canonical_unit, parse_cell
from extras.lint_table.reading import TextTable


class Kind(StrEnum):
    """What a column is, as `--json` prints it."""

    GPUS = auto()  # or processes
    NODES = auto()
    GPUS_PER_NODE = auto()
    BATCH = auto()  # whether of a GPU or of all is not told
    MICRO_BATCH = auto()
    RANK_BATCH = auto()  # of a GPU, with its accumulation
    GLOBAL_BATCH = auto()
    ACCUMULATION = auto()
    THROUGHPUT = auto()
    GPU_THROUGHPUT = auto()
    TOTAL_TIME = auto()
    EPOCH_TIME = auto()
    STEP_TIME = auto()
    BYTE_RATE = auto()
    SPEEDUP = auto()
    EFFICIENCY = auto()
    HARDWARE = auto()  # or software that has to be the same
    LABEL = auto()  # weak or strong
    IDENTITY = auto()
    PARTNER = auto()  # the identity of the base row
    PARAMETER = auto()  # what tells series apart


_COUNTED: Final = r"(?:gpus?|devices?|accelerators?|process(?:es)?|procs|ranks?|workers?|tpus?|cores?|threads?|cpus?)"
_SAMPLES: Final = (
    r"(?:samples?|images?|imgs?|sequences?|seqs?|sentences?|sents?|tokens?|toks?|words?|mels|items?|frames?|examples?|records?|inferences?"
    r"|molecules?|mol|rows?|edges?|nodes?|utterances?|queries|videos?|clips?)"
)
_TIME: Final = r"(?:time|s|ms|us|µs|ns|d|days|secs?|seconds?|mins?|minutes?|h|hrs?|hours?)"
_S: Final = r"(?:s|secs?|seconds?|ms)\b"
_WHOLE: Final = r"(?:number of |num |total |no of |count of |total number of )?"
_HEADS: Final[Sequence[tuple[Kind | None, Sequence[str]]]] = (
    (None, (r"\b(?:low|high|ci|std|stdev|stddev|dev|deviation|p\d\d|percentile|tolerance|interval)\b|\d\d ?%", "^(?:min|max)$")),
    (None, (r"\b(?:rtf|utili[sz]ation|memory|power|energy|parameters|median|minimum|maximum|expected|ideal|predicted|seed)\b",)),
    (None, (r"\b(?:accuracy|loss|perplexity|latency|overhead|(?:inference|system|user) time)\b",)),
    (None, (r"\bhours?\b(?!.*\b(?:train|speed|total)\b)(?<!^hours)",)),
    (Kind.PARAMETER, (r"\b(?:tensor|pipeline|model|context|expert)(?: model)? parallel",)),
    (Kind.EFFICIENCY, (r"\beffic", r"\bscaling factor", "^e(?: [np])?$")),
    (Kind.SPEEDUP, (r"\bspeed ?ups?\b", r"\bscal(?:ing|ability)\b", r"\bacceleration\b", "^s(?: [np])?$")),
    (
        Kind.STEP_TIME,
        (r"\b(?:step|iteration|iter|batch|mini batch) ?time\b", rf"\b{_TIME} ?(?:per|/|of an?|for an?) ?(?:step|iter\w*|batch)\b"),
    ),
    (Kind.EPOCH_TIME, (r"\bepoch (?:time|duration)\b", rf"\b{_TIME} ?(?:per|/|of an?|for an?) ?epoch\b")),
    (None, (r"\b(?:steps|iterations|iters|batches) ?(?:/|per) ?epoch\b",)),
    (Kind.GPUS_PER_NODE, (rf"\b{_COUNTED} ?(?:num )?(?:/|per) ?(?:node|server|machine|host)\b",)),
    (Kind.ACCUMULATION, (r"\b(?:grad\w* )?accumulation\b(?!.*batch)", r"\baccum\w* steps\b", r"\bgrad\w* accum\b", "^gas?$")),
    (Kind.RANK_BATCH, (r"\baccumulated batch\b",)),
    (Kind.GLOBAL_BATCH, (r"\b(?:global|total|effective|overall) (?:mini )?(?:batch|bs\b|bsz)", "^gbs$")),
    (Kind.MICRO_BATCH, (rf"\b(?:batch|bs|bsz)\b.*(?:/|\bper\b) ?{_COUNTED}", rf"\bbatch\w* ?(?:per|/) ?{_COUNTED}")),
    (Kind.MICRO_BATCH, (r"\b(?:micro|local|per gpu|per device|per process) ?(?:batch|bs\b)", "^mbs$")),
    (Kind.BYTE_RATE, (r"\b(?:bandwidth|algbw|transfer rate)\b", r"\b[kmgt]?i?b ?/ ?s\b")),
    (Kind.GPU_THROUGHPUT, (rf"(?:throughput|/ ?{_S}|per {_S}).*(?:/|\bper\b) ?{_COUNTED}",)),
    (Kind.THROUGHPUT, (r"\bthro?ugh?t?put\b", rf"\b{_SAMPLES} ?(?:/|per) ?{_S}", "^(?:rate|ips|speed)$")),
    (Kind.BATCH, (r"^(?:mini ?)?batch(?: ?sizes?)?\b(?!.*\btime)", "^(?:bs|bsz)$")),
    (Kind.TOTAL_TIME, (r"\btime to (?:train|solution|accuracy|target|convergence)", r"\btrain(?:ing)? time", r"\btotal (?:\w+ )?time")),
    (Kind.TOTAL_TIME, (r"\bwall|\brun ?time\b|\belapsed|\bduration", "^(?:minutes|min|hours|seconds)$")),
    (Kind.TOTAL_TIME, (rf"^(?:t(?: [np])?|time|(?:average |avg |mean )?time in|(?:average |avg |mean )time|total)(?: {_TIME})?$",)),
    (None, (rf"^{_WHOLE}(?:epochs?|(?:training )?(?:steps|iterations|iters))$",)),
    (Kind.GPUS, (rf"^{_WHOLE}(?:\w+ )?{_COUNTED}(?: num| number| count)?$", r"\bworld size\b", "^(?:n|p|np)$")),
    (None, (r"\b(?:bytes|transferred|volume|size|copied|data)\b",)),
    (Kind.NODES, (rf"^{_WHOLE}(?:compute )?(?:nodes?|hosts|machines|servers)(?: num| number| count| used)?$", r"\bnodes x gpus\b")),
    (Kind.HARDWARE, (r"\b(?:hardware|system|machine|device name|platform|cluster|interconnect|instance)\b",)),
    (Kind.HARDWARE, (r"\bgpus? (?:model|type|name)\b", r"\b(?:image|container)$", r"\b(?:digest|driver|nccl|cuda)\b")),
    (Kind.PARTNER, ("^(?:partner|baseline|base row|reference)$",)),
    (Kind.IDENTITY, ("^(?:cell|id|run|run id|job|job id|date|hosts?|comments?|notes?|marks?|link|log|reason|interval)$",)),
)
"""The first that is found in the words of a head says what the column is; None: nothing that is judged."""
_PARAMETERS: Final = re.compile(
    "length|dim|image size|resolution|classes|layers|hidden|heads|vocab|depth|width|beam|epochs|seed|threads|degree|parallel|warmup|repeat"
    "|^model$|seq len"
)
_VARIANT: Final = re.compile(
    r"fp32|tf32|fp64|fp16|bf16|bfloat16|fp8|int8|\bamp\b|mixed[ -]precision|\bmixed\b|mid precision|\bhalf\b|full precision"
)
_FULL: Final = ("fp32", "tf32", "fp64", "full precision")
NUMERIC: Final = frozenset(Kind) - {Kind.HARDWARE, Kind.LABEL, Kind.IDENTITY, Kind.PARTNER, Kind.PARAMETER}
_BATCHES: Final = frozenset({Kind.BATCH, Kind.MICRO_BATCH, Kind.RANK_BATCH, Kind.GLOBAL_BATCH})
TIMES: Final = frozenset({Kind.TOTAL_TIME, Kind.EPOCH_TIME, Kind.STEP_TIME})


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column that is understood. `unit`: a key of SECONDS or BYTE_RATES, or what its head says; `variants`: the precisions that its head
    names, `full` or `low`, in their order; `cells`: the numbers of each row, in the unit of the column; empty where there is none."""

    index: int
    title: str
    kind: Kind
    unit: str = ""
    variants: tuple[str, ...] = ()
    cells: tuple[tuple[Printed, ...], ...] = ()

    @property
    def variant(self) -> str | None:
        """Return the one precision that it is about."""
        return self.variants[0] if len(set(self.variants)) == 1 else None

    def number(self, row: int, variant: str | None = None) -> Printed | None:
        """Return the number of a row; of a list such as `16 and 8` that of the precision `variant`."""
        found = self.cells[row]
        if len(found) <= 1:
            return found[0] if found else None
        names = tuple(dict.fromkeys(self.variants))
        return found[names.index(variant)] if variant in names and len(names) == len(found) else None


@dataclass(frozen=True, kw_only=True)
class Understood:
    """A table, and those of its columns that are understood."""

    table: TextTable
    columns: tuple[Column, ...]

    def of(self, *kinds: Kind) -> list[Column]:
        return [column for column in self.columns if column.kind in kinds]

    def first(self, *kinds: Kind) -> Column | None:
        """Return the first column of the first kind that there is."""
        return next((column for kind in kinds for column in self.of(kind)), None)

    def text(self, row: int, column: Column) -> str:
        return self.table.rows[row].cells[column.index]

    def line(self, row: int) -> int:
        return self.table.rows[row].line

    def whole(self, row: int, kind: Kind, variant: str | None = None) -> int | None:
        """Return a count; None where the cell has none, or one that is abbreviated or no whole number above 0."""
        found = [one for column in self.of(kind) if (one := column.number(row, variant))][:1]
        return int(found[0].value) if found and found[0].value >= 1 and found[0].value % 1 == 0 and found[0].unit != "k" else None

    def processes(self, row: int) -> int | None:
        """Return the number that the speed-up of a row is over: GPUs, nodes times GPUs per node, or nodes."""
        gpus, nodes, each = (self.whole(row, kind) for kind in (Kind.GPUS, Kind.NODES, Kind.GPUS_PER_NODE))
        return gpus or (nodes and nodes * (each or 1)) or each

    def global_batch(self, row: int, variant: str | None = None) -> int | None:
        """Return the global batch of a row (in multiples of the GPUs of a node, where only nodes are told), or None."""
        whole = self.whole(row, Kind.GLOBAL_BATCH, variant)
        if whole or self.first(Kind.GLOBAL_BATCH):
            return whole
        rank, replicas = self.rank_batch(row, variant), self.replicas(row)
        return rank * replicas if rank and replicas else None

    def replicas(self, row: int) -> int | None:
        """Return how many batches of a GPU make a global one; None where a model may be split over GPUs."""
        return None if self.splits_models else self.processes(row)

    @cached_property
    def splits_models(self) -> bool:
        return any(re.search(r"\b(?:tensor|pipeline|model)\b.*parallel", head_words(title)) for title in self.table.header)

    def rank_batch(self, row: int, variant: str | None = None) -> int | None:
        """Return what one GPU contributes to an update: its batch times its accumulation steps."""
        if self.first(Kind.RANK_BATCH):
            return self.whole(row, Kind.RANK_BATCH, variant)
        batch, steps = self.whole(row, Kind.MICRO_BATCH, variant), self.whole(row, Kind.ACCUMULATION, variant)
        return (batch and steps and batch * steps) if self.first(Kind.ACCUMULATION) else batch

    def batch_words(self, row: int, variant: str | None = None) -> str:
        """Return the batch of a row as its own columns tell it."""
        each = "{} per GPU" if self.first(Kind.GPUS, Kind.GPUS_PER_NODE) else "{} per node"
        kinds = {Kind.MICRO_BATCH: each, Kind.RANK_BATCH: each, Kind.GLOBAL_BATCH: "global {}", Kind.BATCH: "{}"}
        return ", ".join(form.format(value) for kind, form in kinds.items() if (value := self.whole(row, kind, variant))) or "unknown"


def understand(table: TextTable) -> Understood:
    """Return what is understood of a table; a column that no rule knows, or whose cells are not what its head says, is left out."""
    found = [column for index, title in enumerate(table.header) if (column := _column(index, title, table))]
    return Understood(table=table, columns=tuple(_second_look(found)))


def head_words(title: str) -> str:
    """Return a head in lower case, with blanks for underscores, hyphens and brackets, and a blank between words such as numGpus."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", title).lower().replace("speed-up", "speedup")
    return re.sub(r"\s+", " ", re.sub(r"[_\-\[\](){}:,]", " ", spaced.replace("#", "number of "))).strip()


def _column(index: int, title: str, table: TextTable) -> Column | None:
    texts = [row.cells[index] for row in table.rows]
    filled = [text for text in texts if text]
    if not filled:
        return None
    words = head_words(title)
    variants = tuple("full" if name in _FULL else "low" for name in _VARIANT.findall(words.replace("bfloat16", "bf16")))
    kind, matched = next(((kind, True) for kind, heads in _HEADS if any(re.search(head, words) for head in heads)), (None, False))
    if matched and kind is None:
        return None
    column = Column(index=index, title=title, kind=kind or Kind.PARAMETER, variants=variants)
    if all(text.lower() in ("weak", "strong", "baseline", "base") for text in filled):
        return replace(column, kind=Kind.LABEL)
    unclear = "," if table.delimiter == ";" else "\0"  # a comma between semicolons may be a decimal sign: such numbers are not read
    cells = tuple(() if unclear in text else parse_cell(text) for text in texts)
    numeric = sum(map(bool, cells)) * 2 >= len(filled)
    in_cells = {canonical_unit(cell[0].unit) for cell in cells if cell and cell[0].unit}
    if kind in (None, Kind.THROUGHPUT) and numeric and in_cells and all(unit.endswith("/s") for unit in in_cells):
        column = replace(column, kind=Kind.BYTE_RATE if in_cells <= BYTE_RATES.keys() else Kind.THROUGHPUT)
    elif not matched:
        return None if numeric and not _PARAMETERS.search(words) else column
    if kind in NUMERIC and not numeric:
        named = kind == Kind.GPUS and any(re.search("[a-zA-Z]{2}", text) for text in filled)
        return replace(column, kind=Kind.HARDWARE if named else Kind.PARAMETER) if named or kind in _BATCHES else None
    return _with_units(replace(column, cells=cells), in_cells)


def _with_units(column: Column, in_cells: set[str]) -> Column | None:
    """Return the column with its numbers in one unit, that of its head or else of its first cell."""
    known = SECONDS if column.kind in TIMES else BYTE_RATES if column.kind == Kind.BYTE_RATE else None
    first = min(in_cells, default="")
    if not known:
        rates = re.findall(r"[A-Za-z]+\s*(?:/|per)\s*(?:s|ms|sec|second)\b", column.title)
        return replace(column, unit=canonical_unit(rates[0]) if rates else first)
    unit = next((one for word in _units(column.title) if (one := canonical_unit(word)) in known), first)
    if unit not in known or not in_cells <= set(known):
        return None if known is not SECONDS or in_cells else replace(column, unit="")
    factors = [[known[canonical_unit(one.unit)] / known[unit] if one.unit else 1.0 for one in cell] for cell in column.cells]
    cells = [tuple(one.scaled(f) for one, f in zip(cell, row, strict=True)) for cell, row in zip(column.cells, factors, strict=True)]
    return replace(column, unit=unit, cells=tuple(cells))


def _units(title: str) -> Iterator[str]:
    yield from re.findall(r"[\[(]\s*([^\[\]()]+?)\s*[\])]", title)
    yield from re.findall(r"[A-Za-zµμ]+\s*(?:/|per)\s*[A-Za-z]+", title)
    yield from re.split(r"[\s_,]+", title)


def _second_look(columns: Sequence[Column]) -> Iterator[Column]:
    """Decide by its neighbours what a batch is of."""
    kinds = {column.kind for column in columns}
    for column in columns:
        if column.kind == Kind.BATCH and {Kind.IDENTITY, Kind.PARTNER} <= kinds:
            yield replace(column, kind=Kind.MICRO_BATCH)  # as Slipway's own scaling.csv has it
        elif column.kind == Kind.BATCH and Kind.NODES in kinds and not kinds & {Kind.GPUS, Kind.GPUS_PER_NODE} and is_of_a_node(column):
            yield replace(column, kind=Kind.MICRO_BATCH)  # processes are nodes there
        else:
            yield column


def is_of_a_node(batch: Column) -> bool:
    """Return True if the head of a batch says that it is of a node."""
    return bool(re.search(r"(?:/|\bper\b) ?(?:node|server|machine|host)\b", head_words(batch.title)))


def rounded(column: Column, row: int, variant: str | None = None) -> Interval | None:
    """Return what the number of a cell may stand for, above 0."""
    found = column.number(row, variant)
    return found.rounded if found and found.rounded.low > 0 else None
