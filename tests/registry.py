"""A private registry, read only: as much as `docker pull` asks for.

`python -m tests.registry --user NAME:SECRET --image REPOSITORY:TAG=ARCHIVE` listens on 127.0.0.1:5000 of where it is started, which docker
takes without TLS. Images are archives of `docker save`. REPOSITORY@DIGEST=ARCHIVE,
after it: what is offered under a digest that is another's.
"""

import argparse
import base64
import gzip
import hashlib
import http.server
import json
import sys
import tarfile
from pathlib import Path

PORT = 5000
NAME = f"127.0.0.1:{PORT}"
TYPE = "application/vnd.docker."


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Store:
    """Blobs by digest, manifests by repository and tag or digest."""

    def __init__(self) -> None:
        self.blobs: dict[str, tuple[str, bytes]] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}

    def add(self, repository: str, tag: str, archive: Path) -> None:
        with tarfile.open(archive) as tar:

            def member(name: str) -> bytes:
                file = tar.extractfile(name)
                assert file is not None
                return file.read()

            entry = json.loads(member("manifest.json"))[0]
            config = self._blob(TYPE + "container.image.v1+json", member(entry["Config"]))
            layers = [self._blob(TYPE + "image.rootfs.diff.tar.gzip", gzip.compress(member(name), mtime=0)) for name in entry["Layers"]]
        repository, _, instead = repository.partition("@")
        kind = TYPE + "distribution.manifest.v2+json"
        content = json.dumps({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers}).encode()
        for name in (f"{instead}:{tag}",) if instead else (tag, digest(content)):
            self.manifests[repository, name] = kind, content

    def _blob(self, kind: str, content: bytes) -> dict[str, object]:
        self.blobs[digest(content)] = "application/octet-stream", content
        return {"mediaType": kind, "size": len(content), "digest": digest(content)}

    def find(self, path: str) -> tuple[str, bytes] | None:
        if path == "/v2/":
            return "application/json", b"{}"
        repository, _, rest = path.removeprefix("/v2/").partition("/manifests/")
        return self.manifests.get((repository, rest)) if rest else self.blobs.get(path.rpartition("/blobs/")[2])


def handler(store: Store, user: str) -> type[http.server.BaseHTTPRequestHandler]:
    secret = "Basic " + base64.b64encode(user.encode()).decode()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            allowed = self.headers.get("Authorization") == secret
            found = store.find(self.path) if allowed else None
            kind, content = found or (
                "application/json",
                b'{"errors": [{"code": "%s"}]}' % (b"MANIFEST_UNKNOWN" if allowed else b"UNAUTHORIZED"),
            )
            self.send_response(200 if found else 404 if allowed else 401)
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            if found:
                self.send_header("Docker-Content-Digest", digest(content))
            if not allowed:
                self.send_header("WWW-Authenticate", 'Basic realm="tests"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--user", required=True)
    parser.add_argument("--image", action="append", default=[])
    options = parser.parse_args()
    store = Store()
    for word in options.image:
        name, _, archive = word.partition("=")
        repository, _, tag = name.rpartition(":")
        store.add(repository, tag, Path(archive))
    with http.server.ThreadingHTTPServer(("127.0.0.1", PORT), handler(store, options.user)) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
