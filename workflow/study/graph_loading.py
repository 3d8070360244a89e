"""The graph of the study that Snakemake is told, after all that can be refused before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from base.errors import ConfigError
from base.names import choices
from cluster.schedulers import get_scheduler
from containers.engines import get_engine
from workflow.study.cost import refuse_over_budget
from workflow.study.graph import Graph
from workflow.study.image_file import refuse_missing_credentials
from workflow.study.job_size import refuse_owned_directives
from workflow.study.site import refuse_foreign_scheduler
from workflow.study.source_paths import refuse_missing_sources
from workflow.study.study import load_study
from workflow.study.ways import Mode, refuse_too_few_nodes, refuse_wrong_way

CONFIG_KEYS: Final = ("site", "retry")


def load_graph(
    config: Mapping[str, Any], configfiles: Sequence[Path | str], basedir: Path | str, environ: Mapping[str, str], mode: Mode | None = None
) -> Graph:
    """The graph of the study named by `--configfile`, else of config/study.yaml. Raises ConfigError before anything is started.

    `mode`: how Snakemake runs; None: nobody runs anything now, so that the site fits any.
    What cannot run here at all is refused here too: a scheduler or an engine that is not there, and more GPU hours than the study allows.
    """
    for key in config:
        if key not in CONFIG_KEYS:
            raise ConfigError(f"--config {key}=...: unknown key {key!r}; {choices(key, CONFIG_KEYS)}. What to run stands in the study file")
    retry = config.get("retry", "none")
    if retry not in ("none", "failed"):
        raise ConfigError(f"--config retry={retry}: found {retry!r}, valid: failed")
    if len(configfiles) > 1:
        raise ConfigError(f"one study at a time: --configfile named {len(configfiles)} files: {', '.join(map(str, configfiles))}")
    path = Path(configfiles[0]) if configfiles else Path(basedir, "config", "study.yaml")
    site = config.get("site")
    study = load_study(path, None if site is None else str(site), environ)
    get_scheduler(study.site.scheduler)
    get_engine(study.site.engine)
    refuse_foreign_scheduler(study.site, environ)
    refuse_owned_directives(study.site)
    if mode is not None:
        refuse_wrong_way(study.site, mode.way, environ)
    if set("{}") & set(str(study.site.storage)):
        raise ConfigError(
            f"storage {str(study.site.storage)!r}: Snakemake takes braces in a path for wildcards; choose a path without them"
        )
    graph = Graph(study, retry == "failed", mode)
    if not graph.mode.main:
        return graph
    if mode is not None:
        graph.drop_false_receipts()
    refuse_over_budget(study, graph.runs_to_make)
    if graph.runs_to_make:
        refuse_missing_credentials(study.site)
    refuse_missing_sources(study, {run.cell.dataset for run in graph.runs_to_make})
    refuse_too_few_nodes(graph.mode, graph.runs_to_make)
    return graph
