"""The progress of a live run: a bar on a terminal, one that changes in place in a notebook, else plain lines."""

import sys
from html import escape
from types import TracebackType
from typing import Any

from dask_rl.pipeline.runs.progress import Rate, describe_progress, make_progress

from .control import RunState
from .run_link import LOOK_EVERY_SECONDS, RunLink

_MAX_NOTES = 20


def show_progress(link: RunLink) -> None:
    """Show how far a run is until it is over."""
    noted, is_over = link.look().event, False
    make = NotebookProgress if in_notebook() else make_progress
    with make(f"run {link.name}", link.num_steps, "steps") as display:
        while True:
            state = link.look()
            if state.event is not None and state.event != noted:
                display.note(state.event)
            noted = state.event
            display.update(state.step, None, **_values(state))
            if is_over:
                display.note(state.describe(link.num_steps))
                return
            is_over = link.wait_for_end(LOOK_EVERY_SECONDS)


def in_notebook() -> bool:
    """Tell whether a Jupyter kernel runs this code."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


class NotebookProgress:
    """A bar in a cell's output, which each update replaces; a Progress."""

    def __init__(self, description: str, total: int | None, unit: str) -> None:
        self._description, self._total, self._unit = description, total, unit
        self._rate = Rate()
        self._notes: list[str] = []
        self._done, self._text = 0, ""
        self._handle: Any = None

    def __enter__(self) -> "NotebookProgress":
        from IPython.display import display

        self._handle = display(self, display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle = None

    def update(self, done: int, total: int | None = None, **values: float) -> None:
        """Show how far it is."""
        self._done, self._total = done, total or self._total
        self._text = describe_progress(self._rate.per_second(done), self._unit, values)
        self._refresh()

    def note(self, text: str) -> None:
        """Add a line below the bar; the newest are kept."""
        self._notes = [*self._notes, text][-_MAX_NOTES:]
        self._refresh()

    def _refresh(self) -> None:
        if self._handle is not None:
            self._handle.update(self)

    def __repr__(self) -> str:
        of = "" if self._total is None else f"/{self._total}"
        lines = [", ".join(filter(None, [f"{self._description}: {self._done}{of} {self._unit}", self._text]))]
        return "\n".join([*lines, *self._notes])

    def _repr_html_(self) -> str:
        bar = "" if self._total is None else f'<progress value="{self._done}" max="{self._total}"></progress> '
        first, *notes = (escape(line) for line in repr(self).splitlines())
        return f"<div>{bar}{first}</div>" + "".join(f"<div>{note}</div>" for note in notes)


def _values(state: RunState) -> dict[str, float]:
    score = {} if state.score is None else {"return": state.score}
    return {**state.losses, **score}
