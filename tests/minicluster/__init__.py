"""A real cluster of Slurm, Grid Engine, OpenPBS or OpenLava on one machine: `python -m tests.minicluster --help`."""

from tests.minicluster.cluster import Cluster
from tests.minicluster.packages import missing_here
from tests.minicluster.spec import ClusterError, Spec

__all__ = ["Cluster", "ClusterError", "Spec", "missing_here"]
