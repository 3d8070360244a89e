"""Where a study says what its images were pinned to: the file of the rule `image`, on which all its runs depend that are containers."""

from __future__ import annotations

from pathlib import Path

from base.errors import ConfigError
from containers.engines import in_container
from workflow.study.site import Site
from workflow.study.study import Study


def images_file(study: Study) -> str | None:
    """Its path; None where runs are no containers. Raises what a wrong framework raises."""
    site = study.site
    if not in_container(site.engine):
        return None
    from workflow.run.images.pin import file_name, references

    cells = {cell.framework: cell for cell in reversed(study.cells)}
    wanted = references({"site": site.to_json(), "cells": [cells[name].to_json() for name in sorted(cells)]})
    return str(study.results_dir / file_name(site.engine, wanted))


def missing_credentials(site: Site) -> list[str]:
    """A line where runs are containers and the file for private registries is not there."""
    path = site.registry_credentials
    if path is None or not in_container(site.engine) or path.is_file():
        return []
    return [
        f"site {site.name}: registry_credentials: {path} is not a file on this machine; `{site.engine} login` writes one; a relative path "
        "begins at the site file; without the key the engine uses what it finds itself"
    ]


def refuse_missing_credentials(site: Site) -> None:
    """Raise ConfigError for the same: found now, not when it is needed."""
    lines = missing_credentials(site)
    if lines:
        raise ConfigError(lines[0])


def keep_images(study: Study, file: str) -> None:
    """Before runs start: what `file` names is on storage, archived again if need be. Raises SlipwayError."""
    from workflow.run.images.kept import keep_archives

    keep_archives(Path(file), study.site.storage, study.site.registry_credentials)
