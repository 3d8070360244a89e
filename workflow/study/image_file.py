"""Where a study says what its images were pinned to: the file of the rule `image`, on which all its runs depend that are containers."""

from __future__ import annotations

from pathlib import Path

from workflow.study.study import Study


def images_file(study: Study) -> str | None:
    """Its path; None for the bare engine, which pays nothing for the question. Raises what a wrong framework raises."""
    site = study.site
    if site.engine == "bare":
        return None
    from workflow.run.image import file_name, references

    cells = {cell.framework: cell for cell in reversed(study.cells)}
    wanted = references({"site": site.to_json(), "cells": [cells[name].to_json() for name in sorted(cells)]})
    return str(study.results_dir / file_name(site.engine, wanted))


def keep_images(study: Study, file: str) -> None:
    """Before runs start: what `file` names is on storage, archived again if need be. Raises SlipwayError."""
    from workflow.run.image_kept import keep_archives

    keep_archives(Path(file), study.site.storage, study.site.registry_credentials)
