"""`python -m workflow.run.supervisor`."""

import sys

from workflow.run.link.event_loop import ignore_signals
from workflow.run.supervisor.supervisor import ANNOUNCES, main

code = main()
ignore_signals(ANNOUNCES)
sys.exit(code)
