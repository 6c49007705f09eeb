"""SIGTERM and SIGINT as a request to stop at the next step; a second signal ends the process."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """While the `with` block runs, the first signal sets `requested`; the next one does what it did before.

    In other threads than the main one no signal is caught; `request` works everywhere. A block inside another one of
    the same request changes nothing.
    """

    def __init__(self) -> None:
        self._requested = False
        self._wakers: list[Callable[[], None]] = []
        self._before: dict[int, Any] = {}
        self._depth = 0

    @property
    def requested(self) -> bool:
        """Whether the run is to stop."""
        return self._requested

    def request(self) -> None:
        """Ask the run to stop after the step under way. Takes no lock: a signal may come while anything is held."""
        self._requested = True
        for wake in self._wakers:
            wake()

    def on_request(self, wake: Callable[[], None]) -> None:
        """Have `wake` called at every request; it must not take a lock either."""
        self._wakers.append(wake)

    def __enter__(self) -> "StopRequest":
        """Catch the signals."""
        self._depth += 1
        if self._depth == 1 and threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back."""
        self._depth -= 1
        if not self._depth:
            self._give_back()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.request()
        self._give_back()

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
