"""Where a study says what its images were pinned to: the file of the rule `image`, on which all its runs depend that are containers."""

from __future__ import annotations

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
