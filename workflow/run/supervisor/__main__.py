"""`python -m workflow.run.supervisor`."""

from __future__ import annotations

import sys

from workflow.run.supervisor.supervisor import main

sys.exit(main())
