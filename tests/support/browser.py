"""A real browser: headless Chromium, driven through its DevTools protocol."""

import asyncio
import base64
import json
import math
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from tornado.httpclient import AsyncHTTPClient
from tornado.websocket import WebSocketClientConnection, websocket_connect

CHROMIUM = shutil.which(os.environ.get("CHROMIUM", "chromium"))
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
_WAIT_SECONDS = 60.0

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")


class Browser:
    """One page of a browser of its own; all waits are bounded."""

    def __init__(self, width: int = 1280, height: int = 720) -> None:
        self._size = width, height
        self._loop = asyncio.new_event_loop()
        self._socket: WebSocketClientConnection | None = None
        self._number = 0
        self.problems: list[str] = []
        """Errors on the page's console."""

    def __enter__(self) -> "Browser":
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        width, height = self._size
        command = [str(CHROMIUM), *_FLAGS, f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}"]
        self._log = (Path(self._profile.name) / "log.txt").open("wb")
        self._process = subprocess.Popen(
            [*command, "about:blank"], stdout=self._log, stderr=self._log, start_new_session=True
        )
        try:
            self._run(self._connect())
            self._set_size(*self._size)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._run(self._close())
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
        self._log.close()
        self._loop.close()
        self._profile.cleanup()

    def open(self, address: str) -> None:
        """Go to a page and wait until it is loaded."""
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page, as JSON has it; NaN is None."""
        wrapped = f"JSON.stringify((() => {{ const v = ({expression}); return v === undefined ? null : v }})())"
        result = self.call("Runtime.evaluate", expression=wrapped)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return json.loads(result["result"]["value"])

    def wait_for(self, expression: str, seconds: float = _WAIT_SECONDS) -> Any:
        """Wait until an expression is true, and return its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            if time.monotonic() > deadline:
                pytest.fail(f"waited {seconds:g} s for {expression}; errors {self.problems}; on the page: {self.text}")
            self._run(asyncio.sleep(0.05))
        return value

    @property
    def text(self) -> str:
        """What can be read on the page, in the shadows of Bokeh's models too."""
        return str(self.evaluate(_ALL_TEXT))

    def columns(self, figure: str) -> dict[str, list[Any]]:
        """Return what a Bokeh figure of the first document draws: its source's columns, by the figure's name."""
        found: dict[str, list[Any]] = self.evaluate(_COLUMNS % json.dumps(figure))
        return found

    def screenshot(self, file: Path) -> None:
        """Write a picture of the whole page, as if the screen were that high."""
        width, height = self._size
        whole = max(height, math.ceil(self.call("Page.getLayoutMetrics")["cssContentSize"]["height"]))
        self._set_size(width, whole)
        self.call("Runtime.evaluate", expression=_TWO_FRAMES, awaitPromise=True)
        shot = self.call("Page.captureScreenshot", format="png")
        self._set_size(width, height)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def _set_size(self, width: int, height: int) -> None:
        """Set the size of what is seen: the window's own has a bar at its top."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        result: dict[str, Any] = self._run(self._call(method, parameters))
        return result

    def _run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, _WAIT_SECONDS))

    async def _connect(self) -> None:
        port_file = Path(self._profile.name) / "DevToolsActivePort"
        while not (port_file.exists() and port_file.read_text().strip()):
            if self._process.poll() is not None:
                pytest.fail(f"chromium ended with {self._process.returncode}: {Path(self._log.name).read_text()}")
            await asyncio.sleep(0.02)
        port = port_file.read_text().split()[0]
        while True:
            answer = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/json/list")
            pages = [target for target in json.loads(answer.body) if target["type"] == "page"]
            if pages:
                break
            await asyncio.sleep(0.02)
        self._socket = await websocket_connect(pages[0]["webSocketDebuggerUrl"], max_message_size=2**28)
        for domain in ("Page", "Runtime", "Log"):
            await self._call(f"{domain}.enable", {})

    async def _close(self) -> None:
        if self._socket is not None:
            await self._socket.write_message(json.dumps({"id": 0, "method": "Browser.close"}))
            self._socket.close()

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if self._socket is None:
            raise RuntimeError("the browser is not there")
        self._number += 1
        await self._socket.write_message(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = await self._socket.read_message()
            if message is None:
                raise RuntimeError("the browser is gone")
            answer = json.loads(message)
            self._note(answer)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _note(self, answer: dict[str, Any]) -> None:
        said = answer.get("params", {})
        if answer.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(said["exceptionDetails"].get("exception", said["exceptionDetails"])))
        elif answer.get("method") == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.problems.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")


_TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
_ALL_TEXT = """(() => {
  const read = (node) => {
    if (node.nodeType === 3) return node.textContent;
    if (['SCRIPT', 'STYLE', 'TEMPLATE'].includes(node.nodeName)) return '';
    if (node.nodeType === 1 && getComputedStyle(node).display === 'none') return '';
    const children = [...(node.shadowRoot ? node.shadowRoot.childNodes : []), ...node.childNodes];
    return children.map(read).join(['TD', 'TH', 'SPAN'].includes(node.nodeName) ? ' ' : ' ');
  };
  return read(document.body).replace(/\\s+/g, ' ').trim();
})()"""
_COLUMNS = """(() => {
  const figure = Bokeh.documents[0].get_model_by_name(%s);
  const data = figure.renderers.find((each) => each.data_source !== undefined).data_source.data;
  const entries = data instanceof Map ? [...data.entries()] : Object.entries(data);
  const plain = (value) => ArrayBuffer.isView(value) ? [...value] : Array.isArray(value) ? value.map(plain) : value;
  return Object.fromEntries(entries.map(([name, values]) => [name, plain([...values])]));
})()"""
