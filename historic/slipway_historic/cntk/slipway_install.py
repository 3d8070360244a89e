"""Run when the environment or the image is made: CNTK was built for an Open MPI that is called libmpi.so.12, and runs with version 4, which
is libmpi.so.40. A link beside CNTK's libraries, where these look first, gives it that name; nobody else finds it there."""

import ctypes
import importlib.util
import sys
from pathlib import Path

NAMES = {"libmpi.so.12": "libmpi.so.40", "libmpi_cxx.so.1": "libmpi_cxx.so.40"}


def loaded_from(name: str) -> Path:
    ctypes.CDLL(name)
    with open("/proc/self/maps", encoding="utf-8") as file:
        found = next(line.split(None, 5)[5].strip() for line in file if "/%s" % name in line)
    return Path(found).parent / name  # what was loaded has the name of one release


if __name__ == "__main__":
    spec = importlib.util.find_spec("cntk")
    assert spec is not None
    assert spec.origin is not None
    for link, name in NAMES.items():
        try:
            path = loaded_from(name)
        except OSError as error:
            sys.exit("CNTK needs Open MPI 4 with its C++ library: %s (Debian: openmpi-bin)" % error)
        place = Path(spec.origin).parent / "libs" / link
        if place.is_symlink():
            place.unlink()
        place.symlink_to(path)
