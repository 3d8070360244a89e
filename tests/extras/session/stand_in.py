"""A program that listens on a port of 127.0.0.1: pages, and what Upgrade asks for is echoed. `python stand_in.py PORT`."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Pages(BaseHTTPRequestHandler):
    """Says which fields came to it."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """A page; or an echo, as of a WebSocket."""
        if self.headers.get("Upgrade"):
            self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
            while line := self.rfile.readline():
                self.wfile.write(b"echo " + line)
            self.close_connection = True
            return
        self._say(f"{self.path} {self.headers.get('Cookie')} {self.headers.get('Authorization')}")

    def do_POST(self) -> None:
        """What was sent."""
        self._say(self.rfile.read(int(self.headers["Content-Length"])).decode())

    def _say(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Pages).serve_forever()
