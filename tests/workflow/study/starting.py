"""`python -m tests.workflow.study.starting FILE SITE`: for each line of standard input, a results directory, publish study.json
there as a start of a run does; a line of JSON with what came of it."""

from __future__ import annotations

import json
import sys

from base.errors import ConfigError
from workflow.study.publishing import origin_of, publish_content, resolved_study
from workflow.study.study import load_study

if __name__ == "__main__":
    study = load_study(sys.argv[1], sys.argv[2], {})
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        try:
            came: object = publish_content(line.strip(), resolved_study(study), study.text, origin_of(study, adopt=False))
        except ConfigError as error:
            came = str(error)
        sys.stdout.write(f"{json.dumps(came)}\n")
        sys.stdout.flush()
