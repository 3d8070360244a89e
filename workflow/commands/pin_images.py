"""Pin a study's images on the login node before its job is submitted, so that nobody waits in a queue to learn of a wrong name."""

from __future__ import annotations

from pathlib import Path

from containers.images.commands import why_silent
from workflow.commands.watching import show
from workflow.commands.watching.progress import waiting
from workflow.dag.graph import Graph
from workflow.study.publishing import publish_resolved


def pin_here(graph: Graph) -> bool:
    """What the job's first rule would do, where this machine's engine answers; where not, the first node of the job does it. Whether it
    was done. Raises SlipwayError."""
    file, engine = graph.images_file, graph.study.site.engine
    if file is None or Path(file).exists():
        return False
    if why := why_silent(engine):
        show.line(f"{why}; the first node of the job pins the images")
        return False
    from workflow.run.images.pin import pin_study

    publish_resolved(graph.study, adopt=graph.adopt)
    show.line("pinning the study's images, once; a new one is archived on storage, which takes a while")
    with waiting("images: pinning and archiving"):
        pin_study(Path(graph.results_dir), Path(file))
    return True
