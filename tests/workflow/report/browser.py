"""A browser without a window, driven over a pipe by its own protocol: no driver, no port, nothing to install but Chromium."""

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions", "--hide-scrollbars"),
    *("--disable-features=NetworkTimeServiceQuerying,OptimizationHints,MediaRouter,Translate", "--window-size=1280,900"),
)
LIMIT_S = 60.0


def find_chromium() -> str | None:
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


class Browser:
    """One page at a time. `events` are all that the browser told about it."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer, self._rest, self._number = reader, writer, b"", 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        self._target: str | None = None

    def renew(self) -> None:
        """Open an empty page, of which nothing is emulated, and close the one before."""
        before, self._session = self._target, None
        self._target = self.call("Target.createTarget", url="about:blank")["targetId"]
        if before is not None:
            self.call("Target.closeTarget", targetId=before)
        self._session = self.call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        self.events.clear()
        for domain in ("Network", "Page", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer of one command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, url: str) -> None:
        """Go there and wait until everything is loaded."""
        self.events = [event for event in self.events if event.get("method") != "Page.loadEventFired"]  # of the page before
        self.call("Page.navigate", url=url)
        while not self.named("Page.loadEventFired"):
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def settle(self, condition: str) -> None:
        """Wait until `condition` holds and all that it causes has been done, such as what follows a change of the address."""
        self.call(
            "Runtime.evaluate",
            expression=f"new Promise((done) => {{ const look = () => {condition} ? setTimeout(done) : setTimeout(look); look() }})",
            awaitPromise=True,
        )

    def named(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method and event.get("sessionId") == self._session]

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + LIMIT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser said nothing for {LIMIT_S} s"
            chunk = os.read(self._reader, 1 << 20)
            assert chunk, "the browser ended"
            self._rest += chunk
        line, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def browser(program: str, directory: Path) -> Iterator[Browser]:
    """A new browser with a new profile in `directory`; its network log is `directory`/net.json when it has ended."""
    there, writer = os.pipe()
    reader, back = os.pipe()
    argv = [
        program,
        *FLAGS,
        f"--user-data-dir={directory / 'profile'}",
        f"--log-net-log={directory / 'net.json'}",
        "--remote-debugging-pipe",
        "about:blank",
    ]
    # the browser reads from 3 and writes to 4
    shell = f'exec 3<&{there} 4>&{back}; exec "$@"'
    process = subprocess.Popen(["/bin/bash", "-c", shell, "bash", *argv], pass_fds=(there, back), stderr=subprocess.DEVNULL)
    os.close(there)
    os.close(back)
    try:
        page = Browser(reader, writer)
        page.renew()
        yield page
        page._session = None
        page.call("Browser.close")
        process.wait(LIMIT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(reader)
        os.close(writer)
