"""A headless Chromium, driven over its debugging pipe: what a user does with mouse and keys, without a driver."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --remote-debugging-pipe --window-size=1400,900"
)


class Browser:
    """One page of one browser; a context manager that ends it.

    Args:
        binary: path of Chromium.
        seconds: longest wait for any answer.
    """

    def __init__(self, binary: str, *, seconds: float = 120):
        self._seconds = seconds
        self._profile = tempfile.mkdtemp(prefix="agent-rl-browser-")
        read_here, write_there = os.pipe()
        read_there, self._write = os.pipe()
        self._read = read_here
        line = f'exec "$0" {FLAGS} --user-data-dir="$1" 3<&{read_there} 4>&{write_there}'
        self._process = subprocess.Popen(
            ["bash", "-c", line, binary, self._profile],
            pass_fds=(read_there, write_there), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(read_there)
        os.close(write_there)
        self._number, self._buffer, self._session = 0, b"", None
        self.errors: list[str] = []
        """Exceptions of the page's own script."""

    def __enter__(self) -> Browser:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, 9)
        self._process.wait(20)
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + self._seconds
        while True:
            found = self._next(until)
            if found.get("method") == "Runtime.exceptionThrown":
                details = found["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description") or details["text"])
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']['message']}")
                return found["result"]

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("Chromium ended")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a page, offline, and wait until its script says that it is ready."""
        self.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        self.call("Page.navigate", url="about:blank")  # else another fragment of the same page loads nothing
        self.call("Page.navigate", url=f"file://{page}#{fragment}")
        self.wait("document.body && document.body.dataset.ready === 'yes'")

    def script(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", expression))
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until it is true."""
        until = time.monotonic() + self._seconds
        while not self.script(f"Boolean({expression})"):
            if time.monotonic() > until:
                raise TimeoutError(f"never true: {expression}")
            time.sleep(0.02)

    def key(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def hover(self, selector: str) -> None:
        """Move the mouse over the first element of a CSS selector."""
        x, y = self._middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Click the first element of a CSS selector."""
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def _middle(self, selector: str) -> list[float]:
        return self.script(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'nearest'}); "
            "const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )

    def dark(self, dark: bool) -> None:
        """What the user's system prefers."""
        value = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def screenshot(self, path: Path) -> None:
        """Save a picture of the page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
