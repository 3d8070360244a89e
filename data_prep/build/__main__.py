"""Run the steps of a build as `python -m data_prep.build plan|shard|finish`, one rule each; `work` is what `build_dataset` starts."""

import argparse
import gc
import json
import logging
import sys
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
    plan, shard, finish, work = (
        steps.add_parser(name, help=text)
        for name, text in [
            ("plan", "list the source and decide what goes where"),
            ("shard", "build one shard"),
            ("finish", "publish the dataset and write dataset.json"),
            ("work", "build the shards whose numbers come on stdin"),
        ]
    )
    plan.add_argument("--spec", metavar="JSON", required=True, help="relative paths are relative to the current directory")
    plan.add_argument("--name", required=True)
    for step, run in [(plan, _plan), (shard, _shard), (finish, _finish), (work, _work)]:
        step.add_argument("--build-dir", type=Path, required=True)
        step.set_defaults(run=run)
    finish.add_argument("--datasets-dir", type=Path, required=True)
    shard.add_argument("--index", type=int, required=True)
    return parser


def _plan(arguments: argparse.Namespace) -> None:
    from data_prep.build.dataset import kind_of
    from data_prep.free_space import limit_own_memory
    from data_prep.spec import parse_spec

    if not humanize.is_name(arguments.name):
        raise ConfigError(f"--name {arguments.name!r} is not a name of a dataset: it must match {humanize.NAME.pattern}")
    try:
        values = json.loads(arguments.spec)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--spec is not valid JSON: {error}") from error
    limit_own_memory()
    spec = parse_spec(values, Path.cwd())
    kind_of(spec).plan(spec, arguments.name, arguments.build_dir)


def _shard(arguments: argparse.Namespace) -> None:
    from data_prep.build.dataset import kind_in

    kind_in(arguments.build_dir).build(arguments.build_dir, arguments.index, own_process=True)


def _finish(arguments: argparse.Namespace) -> None:
    from data_prep.build.dataset import kind_in

    kind_in(arguments.build_dir).finish(arguments.build_dir, arguments.datasets_dir)


def _work(arguments: argparse.Namespace) -> None:
    gc.disable()  # lists of thousands of samples come and go, and hold no cycles
    from data_prep.build.dataset import kind_in, kind_named
    from data_prep.build.steps import PLAN_FILE

    try:
        is_planned = (arguments.build_dir / PLAN_FILE).exists()  # else this was started before
        kind = kind_in(arguments.build_dir) if is_planned else kind_named("images")
        for line in sys.stdin:
            index = int(line)
            kind.build(arguments.build_dir, index, lambda done, _total: _show({"done": done}), own_process=True)
            _show({"finished": index})
    except SlipwayError as error:
        _show({"error": type(error).__name__, "message": str(error)})
    except OSError as error:
        _show({"error": "StorageError", "message": str(error)})


def _show(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
