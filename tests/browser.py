"""Screenshots of pages by a headless Chromium that is controlled over a pipe. From the repository's root:

    PYTHONPATH=tests python -m browser page.html pictures

writes pictures/page-360-light.png and so on, for each width and color scheme.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WIDTHS = (360, 800, 1400)  # a phone, a window, a screen; in CSS pixels
SCHEMES = ("light", "dark")
_KEYS = {"Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}  # codes
_MAX_HEIGHT = 16_000  # pixels of a screenshot
# The browser reads from descriptor 3 and writes to 4.
_LAUNCH = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def chromium() -> str | None:
    """Return the path of Chromium, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """A browser with one tab, controlled by the DevTools protocol."""

    def __init__(self) -> None:
        command = chromium()
        if command is None:
            raise FileNotFoundError("Chromium is not installed")
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        browser_read, self._write = os.pipe()
        self._read, browser_write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(browser_read), str(browser_write), command, "--headless",
             "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic",
             f"--user-data-dir={self._folder.name}"],
            pass_fds=(browser_read, browser_write), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(browser_read)
        os.close(browser_write)
        self._message_id, self._buffer, self._session = 0, b"", ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:  # a busy machine
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events before it are skipped."""
        self._message_id += 1
        message = {"id": self._message_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            response = self._next()
            if response.get("id") == self._message_id:
                if "error" in response:
                    raise RuntimeError(f"{method}: {response['error']['message']}")
                result: dict[str, Any] = response["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 1 << 16)
            if not chunk:
                raise RuntimeError("the browser ended")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, page: Path | str, width: int, scheme: str = "light") -> None:
        """Load a page, a file or a URL, in a window of this width and color scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=800, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def ask(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page, or of its promise."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["result"].get("description"))
        return result["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key, such as ArrowRight."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_KEYS[key]
            )

    def point(self, selector: str, x: float = 0.5, y: float = 0.5, *, click: bool = False) -> None:
        """Move the mouse over an element, to a fraction of its width and height, and click there on request."""
        box = self.ask(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: "
            "'nearest'}); const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
        )
        place = {"x": box[0] + x * box[2], "y": box[1] + y * box[3]}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **place)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def picture(self, file: Path) -> None:
        """Save a screenshot of the full page as PNG."""
        height = min(_MAX_HEIGHT, self.ask("document.documentElement.scrollHeight"))
        width = self.ask("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))


def main(page: Path, folder: Path) -> None:
    """Save screenshots of a page at each width, light and dark."""
    folder.mkdir(parents=True, exist_ok=True)
    with Browser() as browser:
        for width in WIDTHS:
            for scheme in SCHEMES:
                browser.open(page, width, scheme)
                browser.picture(folder / f"{page.stem}-{width}-{scheme}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
