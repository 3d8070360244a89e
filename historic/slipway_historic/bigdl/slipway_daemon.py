"""A process of a Spark standalone cluster: `slipway_daemon.py master|worker HEAD PORT ADDRESS`, until it is told to end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, List

from slipway_bigdl.spark import cores_of, environment, memory_mib, wait_for  # type: ignore[import-not-found]


def command(kind: str, head: str, port: str, address: str, folder: str) -> List[str]:
    classes = os.path.join(os.environ["SPARK_HOME"], "jars", "*")
    start = [os.path.join(os.environ["JAVA_HOME"], "bin", "java"), "-Xmx512m", "-cp", classes]
    if kind == "master":
        return [*start, "org.apache.spark.deploy.master.Master", "--host", head, "--port", port, "--webui-port", "0"]
    cell = json.loads(Path(os.environ["SLIPWAY_CELL"]).read_text(encoding="utf-8"))
    sizes = ["--cores", str(cores_of(cell)), "--memory", "%dm" % (memory_mib() + 512)]
    worker = [*start, "org.apache.spark.deploy.worker.Worker", "--host", address, "--webui-port", "0", "--work-dir", folder, *sizes]
    return [*worker, "spark://%s:%s" % (head, port)]


def main(kind: str, head: str, port: str, address: str) -> int:
    os.environ.update(environment(address))
    if kind == "worker":
        wait_for(head, int(port))
    folder = tempfile.mkdtemp(prefix="slipway-spark-")
    os.environ["SPARK_LOCAL_DIRS"] = folder
    try:
        jvm = subprocess.Popen(command(kind, head, port, address, folder))

        def end(number: int, frame: Any) -> None:  # noqa: ARG001 - as signal() calls it
            jvm.terminate()

        signal.signal(signal.SIGTERM, end)
        return jvm.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
