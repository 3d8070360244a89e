"""Write requirements-torch.txt from what pip would fetch: `python -m install.pins REPORT... > requirements-torch.txt`.

Each REPORT is that of `pip install --dry-run --ignore-installed --report REPORT torch==VERSION` for one Python and one machine, which
`--target`, `--only-binary=:all:`, `--python-version` and `--platform` choose. What requirements.txt pins is left out.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

HEAD: Final = """\
# PyTorch of the public index and its CUDA libraries on Linux, beside what requirements.txt pins. Written by `python -m install.pins`.
"""


def names(requirements: str) -> set[str]:
    """Return the names of the packages that a file of requirements pins."""
    return {name(found) for found in re.findall(r"^([A-Za-z0-9._-]+)==", requirements, re.MULTILINE)}


def name(text: str) -> str:
    """Return the name as pip compares it."""
    return re.sub(r"[-_.]+", "-", text).lower()


def text_of(reports: Iterable[dict[str, Any]], without: set[str]) -> str:
    """Return the text of requirements-torch.txt. Raises ValueError when two reports have two versions of one package."""
    versions: dict[str, str] = {}
    hashes: dict[str, set[str]] = {}
    for report in reports:
        for item in report["install"]:
            package, version = name(item["metadata"]["name"]), item["metadata"]["version"]
            if package in without:
                continue
            if versions.setdefault(package, version) != version:
                raise ValueError(f"{package}: {versions[package]} in one report, {version} in another")
            hashes.setdefault(package, set()).add(item["download_info"]["archive_info"]["hashes"]["sha256"])
    parts = []
    for package in sorted(versions, key=lambda found: (found != "torch", found)):
        marker = "" if package == "torch" else ' ; sys_platform == "linux"'
        digests = [f"    --hash=sha256:{digest}" for digest in sorted(hashes[package])]
        parts.append(" \\\n".join([f"{package}=={versions[package]}{marker}", *digests]) + "\n")
    return HEAD + "".join(parts)


def main(files: Sequence[str]) -> int:
    """Print the file, and return the exit code."""
    pinned = names((Path(__file__).resolve().parents[1] / "requirements.txt").read_text())
    sys.stdout.write(text_of((json.loads(Path(file).read_text()) for file in files), pinned))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
