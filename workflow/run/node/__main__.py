"""`python -m workflow.run.node`."""

import sys

from workflow.run.node.program import main

sys.exit(main())
