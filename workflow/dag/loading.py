"""Load the graph of the study for Snakemake, after everything has been refused that can be refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from base.errors import ConfigError
from base.names import choices
from workflow.dag.execution import Mode, refuse_too_few_nodes, refuse_wrong_way
from workflow.dag.graph import Graph
from workflow.dag.refusals import refuse_runs, refuse_site
from workflow.study.study import Study, load_study

CONFIG_KEYS: Final = ("site", "retry", "adopt")


def load_graph(  # noqa: PLR0913 - each is asked for by one caller at least
    config: Mapping[str, Any],
    configfiles: Sequence[Path | str],
    basedir: Path | str,
    environ: Mapping[str, str],
    mode: Mode | None = None,
    tell: Callable[[Study], None] | None = None,
    *,
    ask_scheduler: bool = False,
) -> Graph:
    """The graph of the study named by `--configfile`, else of config/study.yaml. Raises ConfigError before anything is started.

    `mode`: how Snakemake runs; None: nobody runs anything now, so that the site fits any. `tell` is called with the study as soon as it is
    read. `ask_scheduler`: see refuse_runs.
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
    if tell is not None:
        tell(study)
    refuse_site(study, environ)
    if mode is not None:
        refuse_wrong_way(study.site, mode.way, environ)
    graph = Graph(study, retry == "failed", mode, adopt=_adopts(config))
    graph.see_storage(before_runs=mode is not None)
    refuse_runs(study, graph.runs_to_make, environ, ask_scheduler=ask_scheduler)
    refuse_too_few_nodes(graph.mode, graph.runs_to_make)
    return graph


def _adopts(config: Mapping[str, Any]) -> bool:
    """Whether results of another study file are to become this one's. Raises ConfigError."""
    found = str(config.get("adopt", "no")).lower()
    if found not in ("yes", "true", "no", "false"):
        raise ConfigError(f"--config adopt={found}: found {found!r}, valid: yes")
    return found in ("yes", "true")
