"""Stores elsewhere that are slow and fail: a web server with ranges, a proxy before an S3 server, a file system."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
from aiohttp import ClientSession, web
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

WAIT_SECONDS = 20


@dataclass
class Faults:
    """What befalls requests, and which there were."""

    latency_seconds: float = 0.0
    share: float = 0.0
    """Of the requests that fail: an answer 503, a connection that breaks at once, or one amid the answer."""
    status: int | None = None
    """All requests get this answer."""
    seed: int = 0
    requests: list[tuple[str, str]] = field(default_factory=list, repr=False)
    """Method and path of each."""
    num_failed: int = 0
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._now = 0
        self._lock = threading.Lock()

    def begin(self, method: str, path: str) -> str | None:
        """Note a request; return what befalls it."""
        with self._lock:
            self.requests.append((method, path))
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            if self._random.random() >= self.share:
                return None
            self.num_failed += 1
            return self._random.choice(["refused", "broken", "cut"])

    def end(self) -> None:
        """Note that a request is over."""
        with self._lock:
            self._now -= 1


def _middleware(faults: Faults) -> Any:
    @web.middleware
    async def inject(request: web.Request, handler: Any) -> web.StreamResponse:
        fate = faults.begin(request.method, request.path)
        try:
            await asyncio.sleep(faults.latency_seconds)
            if faults.status is not None:
                return web.Response(status=faults.status)
            if fate == "refused":
                return web.Response(status=503)
            if fate is None or request.transport is None:
                return await handler(request)
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            if request.method not in ("GET", "HEAD"):
                await handler(request)  # what is lost is the answer
            elif request.method == "GET" and fate == "cut":
                await response.prepare(request)
                await response.write(b"x")
            request.transport.abort()
            return response
        finally:
            faults.end()

    return inject


@contextmanager
def serve(app: web.Application) -> Iterator[str]:
    """Run a web application in a thread; yields its address."""
    loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    address: list[str] = []

    async def run() -> None:
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert started.wait(WAIT_SECONDS)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(WAIT_SECONDS)
        loop.close()


@contextmanager
def web_server(directory: Path, faults: Faults) -> Iterator[str]:
    """Serve the files of a directory, with ranges and version tags, read only."""
    app = web.Application(middlewares=[_middleware(faults)])
    app.router.add_static("/", directory)
    with serve(app) as address:
        yield address


@contextmanager
def proxy(upstream: str, faults: Faults) -> Iterator[str]:
    """Hand requests on to another server."""

    async def forward(request: web.Request) -> web.Response:
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower() != "transfer-encoding"}
        async with (
            ClientSession(auto_decompress=False) as session,
            session.request(
                request.method, upstream + request.raw_path, headers=headers, data=body, allow_redirects=False
            ) as answer,
        ):
            content = await answer.read()
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP}
            if request.method == "HEAD":
                kept["Content-Length"] = answer.headers.get("Content-Length", "0")
                return web.Response(status=answer.status, headers=kept)
            return web.Response(status=answer.status, headers=kept, body=content)

    app = web.Application(middlewares=[_middleware(faults)], client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", forward)
    with serve(app) as address:
        yield address


_HOP_BY_HOP = {"transfer-encoding", "connection", "content-length", "keep-alive", "date", "server"}


class FaultyFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """The memory, as a store that is slow and fails; a file system whose package knows no threads of its own."""

    protocol = "faulty"
    faults = Faults()
    """Replaced by tests."""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(str(path).replace("faulty://", "memory://")))

    def _begin(self, method: str, path: str) -> str | None:
        fate = self.faults.begin(method, path)
        self.faults.end()
        time.sleep(self.faults.latency_seconds)
        if fate is not None and fate != "cut":
            raise ConnectionResetError("the connection broke")
        return fate

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        fate = self._begin("GET", path)
        content: bytes = super().cat_file(path, start, end, **kwargs)
        return content[: len(content) // 2] if fate == "cut" and start is not None else content

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        fate = self._begin("PUT", path)
        super().pipe_file(path, value, mode=mode, **kwargs)
        if fate == "cut":
            raise ConnectionResetError("the answer was lost")

    def info(self, path: str, **kwargs: Any) -> Any:
        self._begin("HEAD", path)
        return super().info(path, **kwargs)


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)


class LocalStore(LocalFileSystem):  # type: ignore[misc]
    """The disk as a store of objects, behind a URL: it outlives the processes that write to it."""

    protocol = "local-store"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(auto_mkdir=True, **kwargs)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(str(path).removeprefix("local-store://")))


fsspec.register_implementation("local-store", LocalStore, clobber=True)
