"""`python -m cluster.preflight`: the probes of one node, a child of its node program. JSON lines: orders come in, each is answered.

    {"do": "listen", "index", "nodes", "address", "token"}    -> {"say": "probes_listen", "address", "port"}, or
                                                                 {"say": "failed", "during": "preflight", "error", "message"}, and its end
    {"do": "reach", "peers": [[address, port], ...]}          -> {"say": "reached", "reached": per node [seconds, problem] or null}
    {"do": "measure", "attempt", "bytes", "limit_s"}          -> {"say": "measured", "rates": per node [bytes, seconds, busy_s] or null}

It ends with its standard input. The token comes with the first line, never in an argv or an environment.
"""

import asyncio
import json
import signal
import sys
from typing import Any, Final

from base.process import raise_file_limit
from cluster.preflight import probes

MAX_LINE: Final = 1 << 24
"""Bytes of a command: the addresses of all nodes."""


async def run() -> int:
    """Execute the commands, one after the other, and return the exit code when their stream ends."""
    commands = asyncio.StreamReader(limit=MAX_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    line = await commands.readline()
    if not line:
        return 0
    first = json.loads(line)
    try:
        wire = probes.ProbeConnections(first["index"], first["nodes"], first["address"], bytes.fromhex(first["token"]))
    except OSError as error:
        why = f"nothing can listen on {first['address']}, this node's address for the run: {error.strerror}"
        say("failed", during="preflight", error="NodeLost", message=why)
        return 0
    wire.serve()
    say("probes_listen", address=first["address"], port=wire.port)
    peers: list[tuple[str, int]] = []
    async for line in commands:
        command = json.loads(line)
        if command["do"] == "reach":
            peers = [(str(address), int(port)) for address, port in command["peers"]]
            say("reached", reached=await probes.reach(wire, peers))
        else:
            attempt = int(command["attempt"])
            rates = await probes.tournament(wire, peers, attempt, int(command["bytes"]), float(command["limit_s"]))
            say("measured", attempt=attempt, rates=rates)
    wire.close()
    return 0


def say(what: str, **fields: Any) -> None:
    """Print one line on standard output."""
    sys.stdout.write(json.dumps({"say": what, **fields}) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the probes and return the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    raise_file_limit()
    return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
