"""Push results to network storage, whole and checked or not at all. A result that cannot be delivered waits on the node."""

from data_prep.push.copy import MAX_FILES, Naming, publish_checked_files, push_files
from data_prep.push.pending import Delivery, deliver_pending, keep_pending

__all__ = ["MAX_FILES", "Delivery", "Naming", "deliver_pending", "keep_pending", "publish_checked_files", "push_files"]
