"""Stands for a program with a page, such as DIGITS, in an image: `python3 -m digits -p PORT`. Its page is JSON: what it finds around it."""

import argparse
import json
import os
import socket
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def refused(path: str) -> str | None:
    """How it ends to write there."""
    try:
        Path(path, "written").touch()
    except OSError as error:
        return error.strerror
    return None


def told(program: str, word: str) -> str:
    try:
        return subprocess.run([program, word], stdout=subprocess.PIPE, check=False).stdout.decode()
    except OSError as error:
        return str(error)


def found() -> dict[str, Any]:
    data = os.environ.get("SLIPWAY_DATA")
    return {
        "gpus": told("nvidia-smi", "-L"),
        "interfaces": [name for _, name in socket.if_nameindex()],
        "data": data and sorted(path.name for path in Path(data).iterdir()),
        "data_refuses": data and refused(data),
        "root_refuses": refused("/opt"),
        "work": str(Path.cwd()),
        "uid": os.getuid(),
        "environ": dict(os.environ),
    }


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """The one page."""
        text = json.dumps(found()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", type=int)
    Path("model.txt").write_text("trained\n")
    ThreadingHTTPServer(("127.0.0.1", parser.parse_args().p), Pages).serve_forever()
