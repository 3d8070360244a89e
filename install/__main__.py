"""The command line.

    python3 -m install environment DIRECTORY                             a new virtual environment
    .venv/bin/python -m install packages WORDS...                        pip install WORDS
    .venv/bin/python -m install torch --python PYTHON [--use auto|system|none] [--index URL]

Packages and PyTorch go into the environment whose Python runs this.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from install.pytorch import pip, say, torch


def main(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m install", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["environment", "packages", "torch"])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--use", default="auto", choices=["auto", "system", "none"])
    parser.add_argument("--index")
    options, words = parser.parse_known_args(arguments)
    if options.what == "torch":
        return torch(options.python, options.use, options.index or None)
    if options.what == "environment":
        say(f"making the environment {' '.join(words)}")
        return subprocess.run([sys.executable, "-m", "venv", *words], check=False).returncode
    say(f"pip install {' '.join(words)}")
    return pip(words)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
