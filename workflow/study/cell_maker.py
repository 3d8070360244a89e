"""Make checked cells from candidates.

Each combination of keys is checked once, whatever the number of cells that share it.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from base import calls, humanize, jsonfile, sanitize, untrusted
from base.errors import ConfigError, SlipwayError
from containers.engines import in_container
from containers.frameworks import SUPPORTED, check_strategy, check_words, load_framework
from containers.models import MODELS, build_for_tokens, reads_tokens, smallest_size
from containers.spec import PARAMETERS
from data_prep.spec import OF_ONE_SIZE, DatasetSpec
from workflow.study.cell import ARGS, SEED, Cell, Keys, ParametersFile, cell_id
from workflow.study.explain import Fault
from workflow.study.matrix import MERGED, Candidate, Layers, key_path_of
from workflow.study.model import CellKeys, defaults
from workflow.study.paths import attempts_dir, record_path, results_dir
from workflow.study.programs import Supports
from workflow.study.programs import identity as program_identity
from workflow.study.site import Site, device_of


def spec_identity(spec: DatasetSpec) -> dict[str, object]:
    """Return the keys of a specification that differ from the defaults of its kind of source.

    A new key with a default changes none of them.
    """
    values = spec.to_json()
    if spec.has_sequences:
        return {key: value for key, value in values.items() if value is not None}
    plain = {"source": spec.source} if spec.path is None else {"source": spec.source, "path": "default"}
    default = DatasetSpec.model_validate(plain).to_json()
    found = {key: value for key, value in values.items() if key in ("source", "path") or value != default.get(key)}
    if not spec.has_images:
        found.pop("shards", None)  # so many jobs hash it: its content is the same
    return found | {"source": spec.source}


Verdict = tuple[str, str] | None  # the key at fault and what is wrong with it


class CellMaker:
    """The maker of the cells of one study on one site. Faults are noted in `faults`, once per combination."""

    def __init__(  # noqa: PLR0913
        self,
        layers: Layers,
        datasets: Mapping[str, DatasetSpec],
        site: Site,
        programs: Mapping[str, Keys],
        supports: Mapping[str, Supports | None],
        find_parameters: Callable[[str], ParametersFile],
    ) -> None:
        self.layers = layers
        self.datasets = datasets
        self.site = site
        self.programs = programs
        """The programs as `Program.resolved` returns them."""
        self.supports = supports
        """The limits of what the cells of a program may ask for, by program; None: anything."""
        self.specs = {name: spec.to_json() for name, spec in datasets.items()}
        self.identities = {name: spec_identity(spec) for name, spec in datasets.items()}
        self.find_parameters = find_parameters
        self.given: dict[str, ParametersFile] = {}
        """Files of parameters, by the value of the key that names them."""
        self.defaults = defaults()
        self.faults: list[Fault] = []
        self._verdicts: dict[tuple[Any, ...], Verdict] = {}

    def make(self, candidate: Candidate) -> Cell | None:
        """Make the cell, or return None when something is wrong with it."""
        keys = candidate.keys
        for check, names in _CHECKS:
            mark = (check, *(repr(keys[name]) if name in ("args", "optimizer") else keys[name] for name in names))
            if mark not in self._verdicts:
                self._verdicts[mark] = check(self, self._cell("", keys))
                self._note(self._verdicts[mark], candidate)
            if self._verdicts[mark]:
                return None
        return self._cell(cell_id(self._identity(keys), self.identities[keys["dataset"]]), keys)

    def _cell(self, name: str, keys: Keys) -> Cell:
        values = {key: keys[key] for key in CellKeys.model_fields if key != "program"}
        if keys["program"] is not None:
            program = self.programs[keys["program"]]
            values |= {"framework": program["name"], "program": program}
        values["parameters_file"] = self.given.get(keys["parameters"])
        return Cell(cell_id=name, dataset_spec=self.specs[keys["dataset"]], **values)

    def _note(self, verdict: Verdict, candidate: Candidate) -> None:
        if verdict:
            key, message = verdict
            self.faults.append(Fault(place=key_path_of(self.layers, candidate.place, key), message=message))

    def _identity(self, keys: Keys) -> Keys:
        found = {}
        for key in CellKeys.model_fields.keys() - {"dataset", "global_batch_size"}:
            value, default = keys[key], self.defaults.get(key)
            if key in MERGED:
                value = {name: part for name, part in without_sum(value or {}).items() if part != self.defaults[key].get(name)} or default
            if key == "program" and value is not None:
                value = program_identity(self.programs[value])
            elif key == "parameters" and value in self.given:
                value = self.given[value]["blake3"]
            if value != default:
                found[key] = value
        return found


def size_faults(datasets: Mapping[str, DatasetSpec], used: Collection[str]) -> Iterator[Fault]:
    """Yield faults of datasets that would keep each image's own size: a batch has one size, so no run could be made on them."""
    for name in sorted(used):
        spec = datasets[name]
        if spec.has_images and spec.known_size is None and spec.source not in OF_ONE_SIZE:
            message = (
                f"found no size, so each image of the {spec.source} keeps its own, and training needs one size for all; "
                f"valid: size: 224, or size: [height, width]"
            )
            yield Fault(place=("datasets", name), message=message)


def without_sum(values: Mapping[str, int]) -> Mapping[str, int]:
    """Return steps without a total that only adds up the others."""
    if "total" in values and values["total"] == values["warmup"] + values["measured"]:
        return {name: value for name, value in values.items() if name != "total"}
    return values


def _check_batch(_maker: CellMaker, cell: Cell) -> Verdict:
    world, total = cell.world_size, cell.global_batch_size
    if total % world == 0:
        return None
    near = sorted({total // world * world, (total // world + 1) * world} - {0})
    return "global_batch_size", (
        f"found {total}, which does not divide by nodes {cell.nodes} x gpus_per_node {cell.gpus_per_node} = {world}; "
        f"valid: a multiple of {world}, such as {' or '.join(map(str, near))}, or exclude these cells"
    )


def _check_program(maker: CellMaker, cell: Cell) -> Verdict:
    if cell.program is None and cell.args:
        return (
            f"{ARGS}{next(iter(cell.args))}",
            "found an argument for cells without a program, which nothing would read; valid: program: NAME",
        )
    program = cell.program or {}
    if program and in_container(maker.site.engine) and not (program.get("image") or program["name"] in (maker.site.images or {})):
        return "program", (
            f"found {program['name']!r}, which has no image, and the site's engine is {maker.site.engine}; "
            "valid: image: NAME beside its command"
        )
    moved = [] if in_container(maker.site.engine) else [mount for mount in program.get("mounts", []) if mount["source"] != mount["target"]]
    if moved:
        return "program", (
            f"found {program['name']!r}, which wants {moved[0]['source']} at {moved[0]['target']}, and the site's engine is "
            f"{maker.site.engine}, which can put nothing elsewhere; valid: a target that is the source"
        )
    if program and cell.epochs is not None:
        return "epochs", "found epochs, and how many steps are an epoch is up to the program; valid: steps"
    if cell.program is None and cell.model not in MODELS:
        return "model", f"found {cell.model!r}, which is not a model; {humanize.choices(cell.model, MODELS)}"
    return None


def _check_dataset(maker: CellMaker, cell: Cell) -> Verdict:
    spec, model, name = maker.datasets[cell.dataset], cell.model, cell.dataset
    if cell.program is None and not (spec.has_images or spec.has_sequences):
        return "dataset", (
            f"found {name!r} (source: {spec.source}), and framework {cell.framework} trains on images or token sequences; "
            "valid: a dataset of these, or a program of your own"
        )
    if model not in MODELS or (spec.has_sequences if reads_tokens(model) else spec.has_images):
        return _check_tokens(spec, cell)
    what = "token sequences" if reads_tokens(model) else "images"
    found = f"found {model!r}, a network of Slipway's for {what}, and dataset {name!r} (source: {spec.source}) has none to build it for"
    return "model", f"{found}; valid: another model, or a dataset of {what}"


def _check_tokens(spec: DatasetSpec, cell: Cell) -> Verdict:
    if not reads_tokens(cell.model):
        return None
    if cell.layout != "nchw":
        return "layout", f"found {cell.layout}, which is an order of the pixels of images, and {cell.model} reads tokens; valid: nchw"
    try:
        build_for_tokens(cell.model, 2, max(spec.lengths))
    except ConfigError as error:
        return "model", str(error)
    return None


def _check_size(maker: CellMaker, cell: Cell) -> Verdict:
    size, crop, name = maker.datasets[cell.dataset].known_size, cell.crop_size, cell.dataset
    if crop is not None and size is not None and crop > min(size):
        found = f"found {crop}, and the images of dataset {name!r} have {size[0]}x{size[1]}"
        return "crop_size", f"{found}; valid: at most {min(size)}, or a larger size in the dataset"
    if cell.model not in MODELS or reads_tokens(cell.model):
        return None
    smallest, seen = smallest_size(cell.model), cell.size_read(size or (sys.maxsize, sys.maxsize))
    if min(seen) >= smallest:
        return None
    needs = f"{cell.model} needs images of at least {smallest}x{smallest}"
    if crop is not None:
        return "crop_size", f"found {crop}, and {needs}; valid: {smallest} or more"
    return "model", f"{needs}, and dataset {name} has {seen[0]}x{seen[1]}; valid: size: {smallest} or more in it, or another model"


def _check_support(maker: CellMaker, cell: Cell) -> Verdict:
    own, device = load_framework(cell.framework) if cell.program is None else None, device_of(cell.device, maker.site)
    supports, who, why = (own.supports, "framework", own.why) if own else (maker.supports.get(cell.framework), "program", None)
    checks = []
    for key in SUPPORTED if supports is not None else ():
        words = {key: getattr(cell, key), "device": device} | ({"model": cell.model} if key == "layout" else {})  # an order of images only
        checks.append((key, partial(check_words, f"{who} {cell.framework!r}", supports, words, why)))
    for key, check in [*checks, ("strategy", partial(check_strategy, cell.all_keys() if own else {}))]:
        try:
            check()
        except SlipwayError as error:
            return key, str(error)
    return None


def _check_optimizer(_: CellMaker, cell: Cell) -> Verdict:
    if cell.program is not None or cell.mode != "train":
        return None
    supports, optimizer = load_framework(cell.framework).supports, cell.optimizer
    if optimizer["name"] not in supports.optimizers:
        return (
            "optimizer",
            f"found {optimizer['name']}, which framework {cell.framework} has not; valid: {', '.join(supports.optimizers)}",
        )
    if "clip_norm" in optimizer and not supports.clipping:
        return "optimizer", f"found clip_norm, which framework {cell.framework} has not; valid: none, or framework pytorch or jax"
    if "clip_norm" in optimizer and cell.strategy == "horovod":
        return "optimizer", "found clip_norm, and with strategy horovod gradients are averaged in the update; valid: none, or strategy ddp"
    return None


def _check_parameters(maker: CellMaker, cell: Cell) -> Verdict:
    """Find the parameters that a run starts from, so that cells have the digest of the file."""
    text = cell.parameters
    if text == SEED:
        return None
    if text not in maker.given:
        try:
            maker.given[text] = maker.find_parameters(text)
        except ConfigError as error:
            return "parameters", str(error)
    return None


_ONLY: Final[Mapping[str, tuple[object, str]]] = {
    "crop_size": (None, "images that Slipway reads, and frameworks that take parts of them"),
    "augmentation": ("none", "mode train on images that Slipway reads"),
    "reader": ("slipway", "frameworks; native in mode train, with encoding: jpeg or layout: caffe in the dataset"),
    "parameters": (SEED, "frameworks that start from a file"),
    "comm_hook": ("none", "mode train"),
    "bucket_cap_mb": (None, "framework pytorch that trains with strategy ddp and without powersgd"),
    "input_gradient": (False, "framework pytorch that trains on images"),
    "evaluate_every": (None, "frameworks that evaluate between steps, in mode train with reader slipway"),
}
"""The keys that are for some cells only: the value that others have, and which cells these are."""


def _check_only(maker: CellMaker, cell: Cell) -> Verdict:
    data, own = maker.datasets[cell.dataset], load_framework(cell.framework) if cell.program is None else None
    trains, is_seen = cell.mode == "train", cell.reader != "native"
    reads_native = trains and (data.encoding != "raw" or data.layout == "caffe")
    exchanges_buckets = trains and cell.strategy == "ddp" and cell.comm_hook != "powersgd"
    fits = {
        "crop_size": data.has_images and is_seen and (own is None or own.supports.augmentation != ("none",)),
        "augmentation": trains and is_seen and (own is None or data.has_images),
        "reader": own is not None and (cell.reader == "memory" or reads_native),
        "parameters": own is not None and own.supports.parameters,
        "comm_hook": trains,
        "bucket_cap_mb": own is None or (exchanges_buckets and own.supports.bucket_size),
        "input_gradient": own is not None and trains and data.has_images and own.supports.input_gradient,
        "evaluate_every": own is not None and trains and cell.reader == "slipway" and own.supports.evaluate_every,
    }
    for key, (plain, whose) in _ONLY.items():
        if (value := getattr(cell, key)) != plain and not fits[key]:
            found, valid = (str(one).lower() if isinstance(one, bool) else one or "no such key" for one in (value, plain))
            return key, f"found {found}, which is only for {whose}; valid: {valid}, or exclude these cells"
    return None


def _check_site(maker: CellMaker, cell: Cell) -> Verdict:
    most = maker.site.gpus_per_node
    if most is None or cell.gpus_per_node <= most or device_of(cell.device, maker.site) != "cuda":
        return None
    return "gpus_per_node", (
        f"found gpus_per_node {cell.gpus_per_node}; valid: at most {most}, which is what a node of the site {maker.site.name!r} has"
    )


_CHECKS: Final[tuple[tuple[Callable[[CellMaker, Cell], Verdict], tuple[str, ...]], ...]] = (
    (_check_batch, ("global_batch_size", "nodes", "gpus_per_node")),
    (_check_program, ("program", "model", "args", "epochs")),
    (_check_dataset, ("dataset", "program", "framework", "model", "layout")),
    (_check_size, ("model", "dataset", "crop_size")),
    (_check_support, ("framework", "program", *SUPPORTED)),
    (_check_optimizer, ("framework", "program", "mode", "optimizer", "strategy")),
    (_check_only, ("framework", "program", "dataset", "mode", "strategy", *_ONLY)),
    (_check_parameters, ("parameters", "framework", "program")),
    (_check_site, ("gpus_per_node", "device")),
)


# Find the parameters that cells start from: a file that the study names, or what a run of this or another study has trained.


HASH_S: Final = 600.0
"""The time limit for reading a file of parameters once from slow storage."""


def find_parameters(text: str, folder: Path, storage: Path, study: str) -> ParametersFile:
    """Return the file that `text` names, with its size and its digest now. `text`: a path that ends with .safetensors, relative to
    `folder`, or a run, as RUN of `study` or STUDY/RUN. Raises ConfigError where there is none, StorageError where storage is silent."""
    if text.endswith(Path(PARAMETERS).suffix):
        try:
            found: ParametersFile = calls.call_isolated(text, _described, str(humanize.absolute_path(text, folder)), timeout_s=HASH_S)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return found
    other, _, run = text.rpartition("/")
    if not run or "/" in other or {other, run} & {".", ".."}:
        raise ConfigError(f"found {text!r}; valid: seed, a file that ends with .safetensors, or a run, as RUN or STUDY/RUN")
    of_run: ParametersFile = calls.call_isolated(text, _of_run, str(results_dir(storage, other or study)), run, text, timeout_s=HASH_S)
    return of_run


def _of_run(results: str, run: str, text: str) -> ParametersFile:
    record = record_path(Path(results), run)
    if not record.is_file():
        raise ConfigError(
            f"found {text!r}, and {record} is not there: a run that others start from must have its result before they are planned; "
            "of a file only .safetensors is read, as safetensors.torch.save_file writes it"
        )
    found: Any = jsonfile.read_json(record, ConfigError)
    value = found.get("attempt") if isinstance(found, dict) else None
    attempt = sanitize.whole(value, 1)
    if attempt is None:
        raise ConfigError(f"found {run!r}, and {record}: attempt: found {sanitize.quoted(value)}; expected a whole number from 1")
    path = attempts_dir(Path(results), run) / str(attempt) / PARAMETERS
    if not path.is_file():
        raise ConfigError(f"found {run!r}, which has no {path}: it has not trained well, or with save_parameters: false")
    return _described(str(path))


def _described(path: str) -> ParametersFile:
    from data_prep.hashing import hash_open

    try:
        with open(untrusted.open_plain(Path(path)), "rb", buffering=0) as file:
            found = hash_open(file)
    except OSError as error:
        raise ConfigError(f"found {path}, which cannot be read: {error.strerror}") from error
    return {"path": path, "bytes": found.bytes, "blake3": found.blake3}
