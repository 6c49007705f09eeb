"""Another process, waited for: its output, its end, a stop from outside and a limit of time, all in one select."""

import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol

from .process_group import OrphanGuard, is_group_alive

_LAUNCHER = Path(__file__).with_name("die_with_parent.py")
_READ_BYTES = 1 << 16
_TAIL_LINES = 40
_LOOK_SECONDS = 0.05
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Sink(Protocol):
    """Takes a process's output."""

    def write(self, data: bytes) -> None:
        """Take some bytes; raises nothing."""
        ...


class StopSignals:
    """While the `with` block runs, SIGTERM and SIGINT are noted, and wake whoever waits on `descriptor`."""

    def __init__(self) -> None:
        self.num_received = 0
        self.descriptor, self._writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether there was one."""
        return self.num_received > 0

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until there is a signal; return whether there was one."""
        if not self.requested:
            select.select([self.descriptor], [], [], max(seconds, 0))
        return self.requested

    def __enter__(self) -> "StopSignals":
        """Catch them."""
        self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give them back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.descriptor)
        os.close(self._writing)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.num_received += 1
        os.write(self._writing, b"!")


@dataclass(frozen=True)
class Ended:
    """How a process came to its end."""

    returncode: int
    """Minus a signal's number where one ended it."""
    tail: tuple[str, ...]
    """Its last lines."""
    timed_out: bool
    """Whether it was told to stop because its time was over."""

    @property
    def reason(self) -> str:
        """What it said about its end: its last error, else its last line, else its exit code."""
        errors = [line.removeprefix("error: ") for line in self.tail if line.startswith("error: ")]
        if self.returncode < 0:
            return f"ended by {signal_name(-self.returncode)}"
        if errors:
            return errors[-1]
        return f"exit code {self.returncode}" + (f": {self.tail[-1]}" if self.tail else "")


def signal_name(number: int) -> str:
    """Return the name of a signal; those for real time have none of their own."""
    names = {one.value: one.name for one in signal.Signals}
    return names.get(number, f"signal {number}")


def run_command(
    command: Sequence[str],
    *,
    sink: Sink,
    stop: StopSignals,
    directory: Path,
    environment: Mapping[str, str],
    time_limit_seconds: float | None,
    stop_wait_seconds: float,
    stops_group: bool = False,
) -> Ended:
    """Run a program to its end, or to its stop: SIGTERM first, SIGKILL to all that it started later.

    It is the leader of a session of its own, so that a Ctrl-C in a terminal comes to it through us alone; and it dies
    with this process, however that ends, as does what it started. What it leaves behind at an end of its own goes on.

    Args:
        command: the program and its arguments.
        sink: takes its output.
        stop: asks it to stop.
        directory: its working directory.
        environment: variables beside those of this process.
        time_limit_seconds: after which it is asked to stop.
        stop_wait_seconds: after which it is killed when it was asked to stop.
        stops_group: whether what it started is asked to stop at the same time; else once it has ended.
    """
    launched = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), *command]
    with (
        OrphanGuard() as guard,
        subprocess.Popen(
            launched,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**os.environ, **environment},
            start_new_session=True,
        ) as process,
    ):
        guard.watch(process.pid)
        return _Watch(process, sink, stop, time_limit_seconds, stop_wait_seconds, stops_group).to_end()


class _Watch:
    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        sink: Sink,
        stop: StopSignals,
        time_limit_seconds: float | None,
        stop_wait_seconds: float,
        stops_group: bool,
    ) -> None:
        self._process = process
        self._sink = sink
        self._stop = stop
        self._stop_wait_seconds = stop_wait_seconds
        self._stops_group = stops_group
        self._num_signals = 0
        self._limit = None if time_limit_seconds is None else time.monotonic() + max(time_limit_seconds, 0)
        self._kill_at: float | None = None
        self._timed_out = False
        self._tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._rest = b""

    def to_end(self) -> Ended:
        """Watch it until it has ended; what others still write to its output is not waited for."""
        assert self._process.stdout is not None
        output, ending = self._process.stdout.fileno(), os.pidfd_open(self._process.pid)
        os.set_blocking(output, False)
        try:
            open_ones = {output, ending, self._stop.descriptor}
            self._consider_stopping()  # a signal may have come before it was there
            while ending in open_ones:
                ready, _, _ = select.select(open_ones, [], [], self._seconds_left())
                if output in ready and not self._read(output):
                    open_ones.discard(output)
                if ending in ready:
                    open_ones.discard(ending)
                if self._stop.descriptor in ready:
                    os.read(self._stop.descriptor, _READ_BYTES)
                self._consider_stopping()
            self._stop_rest()
            while self._read(output):
                pass
        finally:
            os.close(ending)
        lines = [*self._tail, self._rest] if self._rest else list(self._tail)
        tail = tuple(line.decode(errors="replace").rstrip() for line in lines)
        return Ended(self._process.wait(), tail, self._timed_out)

    def _seconds_left(self) -> float | None:
        ends = [end for end in (self._limit, self._kill_at) if end is not None]
        return max(min(ends) - time.monotonic(), 0) if ends else None

    def _consider_stopping(self) -> None:
        now = time.monotonic()
        if self._limit is not None and now >= self._limit:
            self._limit, self._timed_out = None, True
            self._ask_to_stop(now)
        if self._stop.num_received > self._num_signals:
            self._num_signals = self._stop.num_received
            if self._kill_at is None:
                self._ask_to_stop(now)
            else:
                self._kill_at = now  # asked twice
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            os.killpg(self._process.pid, signal.SIGKILL)

    def _ask_to_stop(self, now: float) -> None:
        if self._stops_group:
            os.killpg(self._process.pid, signal.SIGTERM)
        else:
            self._process.terminate()
        self._kill_at = now + self._stop_wait_seconds

    def _stop_rest(self) -> None:
        """After a stop nothing stays that the program had started; it has ended, and is not waited for yet."""
        if self._kill_at is None:
            return
        if not self._stops_group:
            os.killpg(self._process.pid, signal.SIGTERM)
        self._limit = None
        while self._kill_at is not None and is_group_alive(self._process.pid):
            if select.select([self._stop.descriptor], [], [], _LOOK_SECONDS)[0]:
                os.read(self._stop.descriptor, _READ_BYTES)
            self._consider_stopping()

    def _read(self, descriptor: int) -> bool:
        """Pass on what there is; return whether there may be more."""
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        self._sink.write(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_READ_BYTES:]
        self._tail.extend(lines)
        return bool(data)
