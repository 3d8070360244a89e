"""GPUs are UUIDs: what this process sees of a node's GPUs, which of them it was granted, who else uses them, and whether a container sees
the same. schedulers.md, section 1: numbers mean something else to the scheduler, the driver, CUDA and the container runtime."""

from cluster.gpus.comparing import compare as compare
from cluster.gpus.comparing import listed_uuids as listed_uuids
from cluster.gpus.decision import Decision as Decision
from cluster.gpus.decision import accepted as accepted
from cluster.gpus.decision import decide as decide
from cluster.gpus.decision import explain as explain
from cluster.gpus.decision import granted_gpus as granted_gpus
from cluster.gpus.foreign import App as App
from cluster.gpus.foreign import foreign_use as foreign_use
from cluster.gpus.foreign import look as look
from cluster.gpus.foreign import query_apps as query_apps
from cluster.gpus.listing import Gpu as Gpu
from cluster.gpus.listing import Place as Place
from cluster.gpus.listing import parse_gpus as parse_gpus
from cluster.gpus.listing import query_gpus as query_gpus
from cluster.gpus.listing import read_place as read_place
from cluster.gpus.listing import split_gpus as split_gpus
