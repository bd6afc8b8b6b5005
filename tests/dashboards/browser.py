"""A headless Chromium that tests talk to through a pipe: it opens a file, runs scripts in it and types."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from base64 import b64decode
from contextlib import contextmanager
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 30
AS_3_AND_4 = "import os, sys; [os.dup2(int(sys.argv[n - 2]), n) for n in (3, 4)]; os.execv(sys.argv[3], sys.argv[3:])"
QUIET = ("--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-extensions")


def program():
    """The Chromium of this machine, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A tab, and all that went wrong in it: `errors` of scripts and console, `requests` of anything but its file."""

    def __init__(self, write, read, session):
        self._write, self._read, self._session = write, read, session
        self._number, self._rest = 0, b""
        self.errors, self.requests = [], []

    def call(self, method, **parameters):
        """Call a method of the protocol and return its result; events that come before are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._hear(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, file, width, height=900, after=""):
        """Open a file in a window so wide and wait until it is there."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"{Path(file).resolve().as_uri()}{after}")
        end = time.monotonic() + SECONDS
        while self.run("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < end, "the page never was complete"

    def run(self, script):
        """Return the value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key, text=None):
        """Press a key where the focus is."""
        named = {
            "key": key,
            "code": key,
            "text": text or "",
            "windowsVirtualKeyCode": {"Enter": 13, "Tab": 9}.get(key, 0),
        }
        self.call("Input.dispatchKeyEvent", type="keyDown", **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", **{**named, "text": ""})

    def picture(self, file):
        """Save what the window shows as PNG, all of its length."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 12000), "scale": 1}
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        Path(file).write_bytes(b64decode(found["data"]))

    def _next(self):
        while b"\0" not in self._rest:
            read = os.read(self._read, 1 << 20)
            assert read, "the browser has gone"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _hear(self, event):
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"]["exception"].get("description"))
        if event.get("method") == "Log.entryAdded":
            self.errors.append(parameters["entry"]["text"])
        if event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.errors.append(str(parameters["args"]))
        if event.get("method") == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            self.requests += [] if url.startswith(("file:", "about:")) else [url]


@contextmanager
def chromium(folder):
    """A page of a Chromium of its own, whose profile lies in `folder`."""
    (to_child, write), (read, from_child) = os.pipe(), os.pipe()
    inner = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_child, from_child)]  # clear of 3 and 4, their places
    command = [program(), *QUIET, "--remote-debugging-pipe", f"--user-data-dir={folder}"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []
    start = [sys.executable, "-c", AS_3_AND_4, *map(str, inner), *command]
    process = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=inner)
    for end in (to_child, from_child, *inner):
        os.close(end)  # or a browser that ends would leave us waiting
    try:
        browser = Page(write, read, None)
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(write, read, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        yield page
    finally:
        process.terminate()
        process.wait(SECONDS)
        for end in (write, read):
            os.close(end)
