"""Name the file of the rule `image`, in which a study keeps what its images were pinned to, and on which all its containers depend."""

from __future__ import annotations

from typing import Final

from base.calls import call_apart
from base.errors import ConfigError
from containers.engines import in_container
from workflow.study.site import Site
from workflow.study.study import Study

KEEP_S: Final = 3 * 3600.0
"""The seconds that archives may take to be read, to list their chunks, or to be pulled and written once more: an engine has an hour for
a pull."""


def images_file(study: Study) -> str | None:
    """Return the path of the file; None where runs are no containers. Raises what a wrong framework raises."""
    site = study.site
    if not in_container(site.engine):
        return None
    from workflow.run.images.pin import file_name, references

    cells = {cell.framework: cell for cell in reversed(study.cells)}
    return str(study.results_dir / file_name(site.engine, references(site, (cells[name] for name in sorted(cells)))))


def refuse_missing_credentials(site: Site) -> None:
    """Raise ConfigError where runs are containers and the file for private registries is not there: now, not when it is needed."""
    path = site.registry_credentials
    if path is not None and in_container(site.engine) and not path.is_file():
        raise ConfigError(
            f"site {site.name}: registry_credentials: {path} is not a file on this machine; `{site.engine} login` writes one; a relative "
            "path begins at the site file; without the key the engine uses what it finds itself"
        )


def keep_images(study: Study, file: str, limit_s: float = KEEP_S) -> None:
    """Make sure before runs start that what `file` names is on storage, archived again if need be. Raises SlipwayError.

    It is done in a child, since storage and daemons may hang.
    """
    from workflow.run.images.kept import keep_archives

    site = study.site
    places = (file, str(site.storage), None if site.registry_credentials is None else str(site.registry_credentials))
    call_apart(f"the archives of the images of {study.name}", keep_archives, *places, timeout_s=limit_s)
