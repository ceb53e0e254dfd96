"""A headless Chromium that is spoken to over two pipes (the DevTools protocol), with Python's standard library alone."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

TIMEOUT_S = 60


def find_chromium():
    """The program's path, or None."""
    names = [os.environ.get("RESHARD_CHROMIUM"), "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
    return next((shutil.which(name) for name in names if name and shutil.which(name)), None)


def high_pipe():
    """A pipe whose descriptors are above 9: none of those that the shell below gives away."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high


class Browser:
    """One browser process with a profile of its own; close() ends it with all its children."""

    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="reshard-chromium-")
        to_read, self.to_write = high_pipe()
        self.from_read, from_write = high_pipe()
        arguments = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
                     "--disable-background-networking", "--disable-sync", "--hide-scrollbars", f"--user-data-dir={self.profile}",
                     "--remote-debugging-pipe", "about:blank"]
        # Chromium reads requests from descriptor 3 and writes to descriptor 4.
        shell = f'exec "$@" 3<&{to_read} 4>&{from_write} {to_read}<&- {from_write}>&-'
        self.process = subprocess.Popen(["bash", "-c", shell, "bash", *arguments], pass_fds=(to_read, from_write), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(to_read)
        os.close(from_write)
        self.number = 0
        self.buffer = b""
        self.events = []

    def close(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        os.close(self.to_write)
        os.close(self.from_read)
        shutil.rmtree(self.profile, ignore_errors=True)

    def ask(self, method, session=None, **parameters):
        """Sends a request and returns its answer; events that come meanwhile are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        rest = json.dumps(message).encode() + b"\0"
        while rest:
            rest = rest[os.write(self.to_write, rest):]
        while True:
            answer = self.receive(method)
            if answer.get("id") != self.number:
                self.events.append(answer)
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            return answer["result"]

    def receive(self, waiting_for):
        until = time.monotonic() + TIMEOUT_S
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.from_read], [], [], max(0, until - time.monotonic()))
            part = os.read(self.from_read, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError(f"chromium: {'ended' if ready else 'no answer'} while it was asked for {waiting_for}")
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)


class Page:
    """A tab. Errors on its console, uncaught exceptions, and requests for anything but its own file are collected in `faults`."""

    def __init__(self, browser):
        self.browser = browser
        self.target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.ask("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.seen = 0

    def ask(self, method, **parameters):
        return self.browser.ask(method, self.session, **parameters)

    def close(self):
        self.browser.ask("Target.closeTarget", targetId=self.target)

    def run(self, expression):
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def look(self, width, height, scheme="light"):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.frames()

    def frames(self):
        """Waits until what was changed is drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))))")

    def open(self, path, fragment=""):
        """Seconds until the page says that it is drawn, or that it cannot be."""
        begin = time.monotonic()
        self.ask("Page.navigate", url=f"file://{path}{fragment}")
        drawn = "(document.documentElement?.dataset.ready !== undefined || document.querySelector('.failure') !== null)"
        self.wait(f"location.pathname.endsWith({json.dumps('/' + path.name)}) && {drawn}")
        return time.monotonic() - begin

    def wait(self, condition):
        until = time.monotonic() + TIMEOUT_S
        while not self.run(condition):
            if time.monotonic() > until:
                raise RuntimeError(f"still not true after {TIMEOUT_S} s: {condition}")
            time.sleep(0.02)

    def key(self, key, code=0, text=""):
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text if kind == "keyDown" else "")
        self.frames()

    def point(self, x, y):
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.frames()

    def click(self, selector):
        self.run(f"document.querySelector({json.dumps(selector)}).click()")
        self.frames()

    def centre(self, selector):
        """The middle of an element, which is scrolled into sight first."""
        return self.run(f"(() => {{ const node = document.querySelector({json.dumps(selector)}); node.scrollIntoView({{block: 'center'}});"
                        "const box = node.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; })()")

    def screenshot(self, scale=1.0):
        """A PNG of what is in sight."""
        size = self.run("[innerWidth, innerHeight, scrollX, scrollY]")
        clip = {"x": size[2], "y": size[3], "width": size[0], "height": size[1], "scale": scale}
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png", clip=clip)["data"])

    def faults(self):
        """What went wrong since the last call."""
        found = []
        for event in self.browser.events[self.seen:]:
            if event.get("sessionId") != self.session:
                continue
            method, parameters = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(f"exception: {parameters['exceptionDetails']}")
            if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(f"console: {parameters['args']}")
            if method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(f"log: {parameters['entry']['text']}")
            if method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith("file://"):
                found.append(f"request: {parameters['request']['url']}")
        self.seen = len(self.browser.events)
        return found
