"""The node's cache: published datasets, who uses them, what may go, and results that still wait for storage."""

from data_prep.cache.entries import Row, ls, remove_unused, rm
from data_prep.cache.eviction import evict
from data_prep.cache.holder import this_process
from data_prep.cache.layout import Cache, open_cache
from data_prep.cache.lease import Lease, release

__all__ = ["Cache", "Lease", "Row", "evict", "ls", "open_cache", "release", "remove_unused", "rm", "this_process"]
