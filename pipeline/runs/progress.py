"""Progress on stderr: a bar on a terminal, plain lines elsewhere, or records where those are asked for."""

import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from .logs import RecordStream, current_records

LINE_EVERY_SECONDS = 5.0
_QUIET_SECONDS = 2.0
"""What takes no longer prints no plain line."""


class Progress(Protocol):
    """Something long under way; a context manager."""

    def __enter__(self) -> "Progress":
        """Begin to show it."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing it."""
        ...

    def update(self, done: int, total: int | None = None, **values: float) -> None:
        """Say how far it is, and numbers to show, such as loss."""
        ...

    def note(self, text: str) -> None:
        """Say something that is not the usual course."""
        ...


def make_progress(description: str, total: int | None, unit: str) -> Progress:
    """Return a bar where stderr is a terminal, else plain lines; records under `--log-format json`.

    Args:
        description: what is under way, such as "train".
        total: units until the end; None where that is unknown.
        unit: what is counted, such as "steps".
    """
    records = current_records()
    if records is not None:
        return _Records(description, total, unit, records)
    return _Bar(description, total, unit) if sys.stderr.isatty() else _Lines(description, total, unit)


def no_progress(description: str, total: int | None, unit: str) -> Progress:
    """Return a progress that shows nothing."""
    return _Lines(description, total, unit, write=lambda line: None)


class Rate:
    """Units per second since the first report, which may come from a resumed run."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def per_second(self, done: int) -> float:
        """Return the rate up to now."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, done)
        started, before = self._first
        return (done - before) / (now - started) if now > started else 0.0


class _Bar:
    def __init__(self, description: str, total: int | None, unit: str) -> None:
        self._rate = Rate()
        self._unit = unit
        self._rich = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=False,
        )
        self._task = self._rich.add_task(description, total=total, values="")

    def __enter__(self) -> "_Bar":
        self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rich.stop()

    def update(self, done: int, total: int | None = None, **values: float) -> None:
        text = describe_progress(self._rate.per_second(done), self._unit, values)
        if total is not None:
            self._rich.update(self._task, total=total)
        self._rich.update(self._task, completed=done, values=text)

    def note(self, text: str) -> None:
        self._rich.console.print(text, markup=False, highlight=False)


class _Lines:
    def __init__(
        self, description: str, total: int | None, unit: str, write: Callable[[str], None] | None = None
    ) -> None:
        self._description, self._total, self._unit = description, total, unit
        self._write = write or _to_stderr
        self._rate = Rate()
        self._began = time.monotonic()
        self._next_line = self._began + _QUIET_SECONDS
        self._last: tuple[int, Mapping[str, float]] = (0, {})

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.monotonic() - self._began
        if error is None and seconds >= _QUIET_SECONDS:
            self._line(*self._last, ending=f"in {seconds:.1f} s")

    def update(self, done: int, total: int | None = None, **values: float) -> None:
        self._total = total or self._total
        self._last = (done, values)
        rate = self._rate.per_second(done)
        if time.monotonic() < self._next_line or done == self._total:  # the end has a line of its own
            return
        self._next_line = time.monotonic() + LINE_EVERY_SECONDS
        left = "" if not self._total or rate <= 0 else f"{(self._total - done) / rate:.0f} s left"
        self._line(done, values, ending=left)

    def note(self, text: str) -> None:
        self._write(f"{self._description}: {text}")

    def _line(self, done: int, values: Mapping[str, float], ending: str) -> None:
        of = f"/{self._total}" if self._total else ""
        text = describe_progress(self._rate.per_second(done), self._unit, values)
        self._write(", ".join(filter(None, [f"{self._description}: {done}{of} {self._unit}", text, ending])))


class _Records:
    def __init__(self, description: str, total: int | None, unit: str, records: RecordStream) -> None:
        self._fields: dict[str, object] = {"activity": description, "done": 0, "total": total, "unit": unit}
        self._records = records
        self._rate = Rate()
        self._began = time.monotonic()
        self._next_record = self._began + _QUIET_SECONDS

    def __enter__(self) -> "_Records":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._records.write("info", "progress", **self._fields, seconds=time.monotonic() - self._began)

    def update(self, done: int, total: int | None = None, **values: float) -> None:
        self._fields |= {"done": done, "per_second": self._rate.per_second(done), **values}
        if total is not None:
            self._fields["total"] = total
        if time.monotonic() >= self._next_record:
            self._next_record = time.monotonic() + LINE_EVERY_SECONDS
            self._records.write("info", "progress", **self._fields)

    def note(self, text: str) -> None:
        self._records.write("warning", "note", activity=self._fields["activity"], message=text)


def describe_progress(rate: float, unit: str, values: Mapping[str, float]) -> str:
    """Return a rate and numbers in one line."""
    parts = [f"{rate:.{0 if rate >= 10 else 1}f} {unit}/s"] if rate else []
    return ", ".join([*parts, *(f"{name} {value:.4g}" for name, value in values.items())])


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
