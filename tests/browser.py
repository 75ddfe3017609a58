"""Pages as a browser shows them: a headless Chromium, spoken to over a pipe. From the repository's root:

    PYTHONPATH=tests python -m browser page.html pictures

writes pictures/page-360-light.png and so on, for every width and colour scheme in which a page is to be looked at.
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
_TALLEST = 16_000  # pixels of a picture
# The browser reads from descriptor 3 and writes to 4, whatever their numbers are here.
_LAUNCH = """
import fcntl, os, sys
hear, tell = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(hear, 3)
os.dup2(tell, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def chromium() -> str | None:
    """The browser on this machine, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """A browser with one tab. Commands are those of the DevTools protocol."""

    def __init__(self) -> None:
        command = chromium()
        if command is None:
            raise FileNotFoundError("there is no Chromium on this machine")
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        hear, self._write = os.pipe()
        self._read, tell = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(hear), str(tell), command, "--headless", "--no-sandbox",
             "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic",
             f"--user-data-dir={self._folder.name}"],
            pass_fds=(hear, tell), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(hear)
        os.close(tell)
        self._number, self._rest, self._session = 0, b"", ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        self._process.wait(20)
        self._folder.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events on the way are passed over."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._read, 1 << 16)
            if not more:
                raise RuntimeError("the browser ended")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, page: Path, width: int, scheme: str = "light") -> None:
        """Show a page in a window of some width and a colour scheme, and wait until it is there."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=800, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.resolve().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def ask(self, script: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def picture(self, file: Path) -> None:
        """The whole page as a PNG."""
        height = min(_TALLEST, self.ask("document.documentElement.scrollHeight"))
        width = self.ask("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))


def main(page: Path, folder: Path) -> None:
    """Pictures of a page at each width, light and dark."""
    folder.mkdir(parents=True, exist_ok=True)
    with Browser() as browser:
        for width in WIDTHS:
            for scheme in SCHEMES:
                browser.open(page, width, scheme)
                browser.picture(folder / f"{page.stem}-{width}-{scheme}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
