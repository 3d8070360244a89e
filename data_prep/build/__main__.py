"""Run the steps of a build as `python -m data_prep.build plan|shard|finish|all`, one rule each; `all` starts `work`."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from base import humanize, logs
from base.errors import ConfigError, SlipwayError, StorageError

logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Run one step; the exit code of the error's class."""
    arguments = _parser().parse_args(argv)
    logs.configure("dataset")
    logs.private_umask(group=arguments.group)
    try:
        arguments.run(arguments)
    except SlipwayError as error:
        return _failed(error)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _failed(StorageError(f"{where}{error.strerror or error}"))
    return 0


def _failed(error: SlipwayError) -> int:
    logger.error("%s", error)
    return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data_prep.build", description=__doc__)
    parser.add_argument("--group", action="store_true", help="our group may read what is written (`shared: group` of the site file)")
    steps = parser.add_subparsers(required=True, metavar="STEP")
    plan, shard, finish, whole, work = (
        steps.add_parser(name, help=text)
        for name, text in [
            ("plan", "list the source and decide what goes where"),
            ("shard", "build one shard"),
            ("finish", "publish the dataset and write dataset.json"),
            ("all", "all steps, shards in parallel"),
            ("work", "build the shards whose numbers come on stdin"),
        ]
    )
    for step in (plan, whole):
        given = step.add_mutually_exclusive_group(required=True)
        given.add_argument("--spec", metavar="JSON", help="the specification; relative paths are relative to the current directory")
        given.add_argument("--spec-file", type=Path, metavar="PATH", help="a JSON file with it; relative paths are relative to the file")
        step.add_argument("--name", required=True)
        step.add_argument("--strict", action="store_true", help="refuse the dataset when anything of the source is rejected")
    for step in (plan, shard, finish, work):
        step.add_argument("--build-dir", type=Path, required=True)
    for step in (finish, whole):
        step.add_argument("--datasets-dir", type=Path, required=True)
    for step in (plan, shard, finish, whole):
        step.add_argument("--progress", action="store_true", help='one JSON line {"done", "total"} each on stdout')
    shard.add_argument("--index", type=int, required=True)
    whole.add_argument("--jobs", type=int, help="processes at a time; default: the cores at hand")
    whole.add_argument("--fresh", action="store_true", help="forget what an earlier build of this specification decided")
    for step, run in [(plan, _plan), (shard, _shard), (finish, _finish), (whole, _all), (work, _work)]:
        step.set_defaults(run=run)
    return parser


def _plan(arguments: argparse.Namespace) -> None:
    from data_prep.build.dataset import kind_of
    from data_prep.space import limit_own_memory
    from data_prep.spec import parse_spec

    name, values, base = _specification(arguments)
    limit_own_memory()
    spec = parse_spec(values, base)
    kind_of(spec).plan(spec, name, arguments.build_dir, _progress(arguments))


def _shard(arguments: argparse.Namespace) -> None:
    from data_prep.build.dataset import kind_in

    kind_in(arguments.build_dir).build(arguments.build_dir, arguments.index, _progress(arguments))


def _finish(arguments: argparse.Namespace) -> None:
    from data_prep.build.dataset import kind_in

    _show(vars(kind_in(arguments.build_dir).finish(arguments.build_dir, arguments.datasets_dir, _progress(arguments))))


def _all(arguments: argparse.Namespace) -> None:
    from data_prep.build.dataset import build_dataset
    from data_prep.space import limit_own_memory
    from data_prep.spec import parse_spec

    limit_own_memory()
    name, values, base = _specification(arguments)
    spec = parse_spec(values, base)
    built = build_dataset(spec, name, arguments.datasets_dir, arguments.jobs, _progress(arguments), fresh=arguments.fresh)
    _show(vars(built))


def _work(arguments: argparse.Namespace) -> None:
    gc.disable()  # lists of thousands of samples come and go, and hold no cycles
    from data_prep.build.dataset import images, kind_in
    from data_prep.build.steps import PLAN_FILE

    try:
        kind = kind_in(arguments.build_dir) if (arguments.build_dir / PLAN_FILE).exists() else images()  # started before the plan is made
        for line in sys.stdin:
            index = int(line)
            kind.build(arguments.build_dir, index, lambda done, _total: _show({"done": done}))
            _show({"finished": index})
    except SlipwayError as error:
        _show({"error": type(error).__name__, "message": str(error)})
    except OSError as error:
        _show({"error": "StorageError", "message": str(error)})


def _specification(arguments: argparse.Namespace) -> tuple[str, object, Path]:
    from base.jsonfile import read_json

    if not humanize.is_name(arguments.name):
        raise ConfigError(f"--name {arguments.name!r} is not a name of a dataset: it must match {humanize.NAME.pattern}")
    if arguments.spec_file is not None:
        values, base = read_json(arguments.spec_file, ConfigError), arguments.spec_file.absolute().parent
    else:
        try:
            values, base = json.loads(arguments.spec), Path.cwd()
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"--spec is not valid JSON: {error}") from error
    if arguments.strict and isinstance(values, dict):
        values = {**values, "strict": True}
    return arguments.name, values, base


def _progress(arguments: argparse.Namespace) -> Callable[[int, int], None] | None:
    return (lambda done, total: _show({"done": done, "total": total})) if arguments.progress else None


def _show(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
