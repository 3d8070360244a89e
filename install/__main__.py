"""Run the command line of the installer.

    python3 -m install environment DIRECTORY                             a new virtual environment
    .venv/bin/python -m install packages [--for TEXT] WORDS...           pip install WORDS, announced as TEXT
    .venv/bin/python -m install torch --python PYTHON [--use auto|system|none] [--index URL]

Packages and PyTorch go into the environment whose Python runs this.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from install.packages import pip
from install.pytorch import torch


def main(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m install", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["environment", "packages", "torch"])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--use", default="auto", choices=["auto", "system", "none"])
    parser.add_argument("--index")
    parser.add_argument("--for", dest="purpose", default="")
    options, words = parser.parse_known_args(arguments)
    if options.what == "torch":
        return torch(options.python, options.use, options.index or None)
    if options.what == "environment":
        return subprocess.run([sys.executable, "-m", "venv", *words], check=False).returncode
    return pip(words, options.purpose)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
