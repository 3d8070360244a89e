"""Results go to network storage whole and checked, or not at all; what cannot be delivered waits on the node."""

from data_prep.push.copy import Naming, push_files
from data_prep.push.listing import MOST_FILES
from data_prep.push.pending import Delivery, deliver_pending, keep_pending
from data_prep.push.publish import publish_attempt

__all__ = ["MOST_FILES", "Delivery", "Naming", "deliver_pending", "keep_pending", "publish_attempt", "push_files"]
