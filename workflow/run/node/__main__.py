"""`python -m workflow.run.node`."""

from __future__ import annotations

import sys

from workflow.run.node.program import main

sys.exit(main())
