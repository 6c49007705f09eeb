"""The iterator of one learner over its data shards of a dataset."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from dask_rl.learners.batch import Batch
from dask_rl.storage.errors import ConfigError, explain

from .config import Feed
from .gather import Gatherer
from .partition import IntArray
from .windows import Waiter, Windows

_MAX_SHOWN = 60  # characters of a value in a message


class DatasetIterator:
    """An endless stream of one learner's share of each global batch. Not thread-safe.

    The share of step k holds rows [k*b, (k+1)*b) of the stream of each owned shard, in ascending order.
    """

    is_aligned = True

    def __init__(
        self,
        feed: Feed,
        shards: tuple[int, ...],
        windows: Windows,
        gatherer: Gatherer,
        waiter: Waiter,
        on_close: Callable[[], None],
    ) -> None:
        self.step = 0
        self.shards = shards
        self.rows_per_shard = feed.rows_per_shard
        self.feed = feed
        """The settings as worked out, and the transitions."""
        self._windows, self._gatherer, self._waiter, self._on_close = windows, gatherer, waiter, on_close
        self._waited_at_open = waiter.seconds
        self._index: list[IntArray] = []
        self._begun = False  # whether _index and the windows stand right behind the gathered batches
        self._served = self._gathered = self._first_row = 0

    @property
    def resident(self) -> bool:
        """Whether all rows of the owned shards are in memory."""
        return self._windows.all_loaded

    @property
    def wait_seconds(self) -> float:
        """Seconds spent waiting for data, the first loading in resident mode not counted."""
        return self._waiter.seconds - self._waited_at_open

    @property
    def num_rows(self) -> int:
        """Rows that this learner has been given by step `step`."""
        return self.step * self.rows_per_shard * len(self.shards)

    @property
    def epoch(self) -> float:
        """Position in epochs: global rows delivered over usable transitions."""
        return self.step * self.feed.config.batch_size / self.feed.transitions.num_positions

    def next_batch(self) -> Batch:
        """Return the next batch. Its tensors are views of reused buffers, valid until the next call.

        Raises:
            WaitTimeoutError: data took too long; calling again tries again.
        """
        if self._served == self._gathered:
            self._gather()
        batch = self._gatherer.batch(self._served)
        self._served += 1
        self.step += 1
        return batch

    def seek(self, step: int) -> None:
        """Make the next batch that of `step`: exact, and without reading what lies between."""
        if step < 0:
            raise ConfigError(explain("step", got=step, allowed="0 or more", fix="seek to a step of the run"))
        if step != self.step:
            self.step, self._begun = step, False
            self._served = self._gathered = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the step and all that decides the content of the batches; the same on all learners."""
        return {"step": self.step, "parameters": self.feed.parameters()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Seek to a saved step.

        Raises:
            ConfigError: it belongs to other data, another order or another number of shards.
        """
        saved, own = dict(state["parameters"]), self.feed.parameters()
        differing = [name for name in sorted(saved.keys() | own.keys()) if saved.get(name) != own.get(name)]
        if differing:
            pairs = {name: _where_they_differ(saved.get(name), own.get(name)) for name in differing}
            raise ConfigError(
                explain(
                    "iterator state",
                    got={name: pair[0] for name, pair in pairs.items()},
                    allowed={name: pair[1] for name, pair in pairs.items()},
                    fix="resume with the settings that the run began with, or start a new run",
                )
            )
        self.seek(int(state["step"]))

    def close(self) -> None:
        """End the threads; batches taken before stay readable."""
        self._on_close()

    def _gather(self) -> None:
        """Gather the next steps: many at once, or a single one in pieces where streaming crosses a window."""
        if not self._begun:
            self._begin()
        # Whatever goes wrong on the way, the next call begins anew at the step that is due.
        self._begun = False
        gatherer, per_step = self._gatherer, self.rows_per_shard
        num_steps = gatherer.num_steps
        if not self._windows.all_loaded:
            num_steps = min(num_steps, min(map(len, self._index)) // per_step)
        if num_steps:
            for slot in range(len(self.shards)):
                rows = self._next_rows(slot, num_steps * per_step)
                gatherer.index[:num_steps, slot] = rows.reshape(num_steps, per_step)
            gatherer.gather(num_steps)
        else:
            self._gather_pieces()
        self._served, self._gathered = 0, max(1, num_steps)
        self._begun = True

    def _begin(self) -> None:
        self._first_row = self.step * self.rows_per_shard
        self._windows.start(self._first_row)
        self._index = [np.empty(0, np.int64) for _ in self.shards]

    def _next_rows(self, slot: int, count: int) -> IntArray:
        parts: list[IntArray] = []
        while count > 0:
            if len(self._index[slot]) == 0:
                window, index = self._windows.advance(slot)
                self._index[slot] = index[max(0, self._first_row - window.start) :]  # the first one may be begun
            part, self._index[slot] = self._index[slot][:count], self._index[slot][count:]
            parts.append(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _gather_pieces(self) -> None:
        for slot in range(len(self.shards)):
            filled = 0
            while filled < self.rows_per_shard:
                available = len(self._index[slot]) or 1  # an empty window is given up for the next one
                piece = self._next_rows(slot, min(available, self.rows_per_shard - filled))
                self._gatherer.gather_piece(slot, filled, piece)
                filled += len(piece)
        self._gatherer.finish_pieces()


def _where_they_differ(*values: Any) -> tuple[str, ...]:
    """Return two values as short texts, long ones from shortly before their first difference on."""
    texts = [str(value) for value in values]
    start = 0
    if max(map(len, texts)) > _MAX_SHOWN:
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False))
        start = max(0, sum(1 for _ in same) - _MAX_SHOWN // 2)
    return tuple(_short(text, start) for text in texts)


def _short(text: str, start: int) -> str:
    shown = text[start : start + _MAX_SHOWN]
    return f"{'...' * (start > 0)}{shown}{'...' * (start + len(shown) < len(text))}"
