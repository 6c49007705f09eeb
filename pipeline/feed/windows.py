"""Windows in memory: all of them at once, or loaded ahead of use into reused slots."""

import heapq
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from dask_rl.storage.errors import WaitTimeoutError, explain

from .blocks import plan_block
from .config import Feed
from .derived import DerivedColumns
from .layout import Layout
from .loaders import BlockLoader
from .order import Part, ShardOrder, Window
from .partition import IntArray
from .threads import LoaderThreads

T = TypeVar("T")


@dataclass
class Waiter:
    """Waits for background work, with a limit, and counts the time."""

    subject: str
    timeout_seconds: float
    seconds: float = 0.0

    def result(self, future: "Future[T]", what: str) -> T:
        """Return the future's result; raises WaitTimeoutError when it takes too long."""
        if future.done():
            return future.result()
        self.settle(future, what)
        return future.result()

    def settle(self, future: "Future[T]", what: str) -> None:
        """Wait until the future is done, with whatever outcome."""
        begin = time.perf_counter()
        done, _ = wait([future], timeout=self.timeout_seconds)
        self.seconds += time.perf_counter() - begin
        if not done:
            raise WaitTimeoutError(
                explain(
                    f"{self.subject}, {what}",
                    got=f"no data after {self.timeout_seconds:g} seconds",
                    fix="look for a paused worker or slow storage, or raise the timeout",
                )
            )


class BlockStore:
    """The columns in memory, and what fills them."""

    def __init__(self, feed: Feed, layout: Layout, loader: BlockLoader, derived: DerivedColumns) -> None:
        self.layout = layout
        self.columns = layout.allocate(0)
        self._feed = feed
        self._loader = loader
        self._derived = derived

    def allocate(self, num_rows: int) -> None:
        """Make room for so many rows."""
        self.columns = self.layout.allocate(num_rows)

    def load(self, shard: int, part: Part, base: int) -> None:
        """Fill the rows from `base` on with a block of a data shard, or a piece of one."""
        plan = plan_block(self._feed, shard, part, self.layout.halo)
        out = {name: column[base : base + plan.num_rows] for name, column in self.columns.items()}
        self._loader.load(plan, out)
        self._derived.fill(plan, out)

    def offset(self, order: ShardOrder, part: Part) -> int:
        """Return where a part begins inside its block."""
        block = order.block_part(part.block)
        if part.start == block.start:
            return 0
        alone = plan_block(self._feed, order.shard, part, self.layout.halo)
        whole = plan_block(self._feed, order.shard, block, self.layout.halo)
        first = alone.piece_starts[:1]
        return int((whole.buffer_rows(first) - alone.buffer_rows(first))[0])

    def index(self, order: ShardOrder, window: Window, bases: Sequence[int]) -> IntArray:
        """Return the rows of a window in its order; its parts begin at `bases`."""
        parts = [
            plan_block(self._feed, order.shard, part, self.layout.halo).local_index() + base
            for part, base in zip(window.parts, bases, strict=True)
        ]
        return np.concatenate(parts)[order.permutation(window)]


class Windows(Protocol):
    """Hands out the windows of each owned shard, in the order of its stream."""

    all_loaded: bool
    """Whether rows of earlier windows stay in memory."""

    def start(self, row: int) -> None:
        """Begin anew, at this row of every shard's stream."""
        ...

    def advance(self, slot: int) -> tuple[Window, IntArray]:
        """Give up the current window of owned shard number `slot`; return its next one, as rows in order."""
        ...


class ResidentWindows:
    """Every block has its place for good; only the order of the next windows is worked out ahead."""

    all_loaded = True

    def __init__(
        self,
        store: BlockStore,
        orders: Sequence[ShardOrder],
        pool: LoaderThreads,
        waiter: Waiter,
        block_sizes: Sequence[IntArray],
    ) -> None:
        self._store, self._orders, self._pool, self._waiter = store, orders, pool, waiter
        ends = np.cumsum(np.concatenate(block_sizes))
        edges = np.cumsum([len(sizes) for sizes in block_sizes])[:-1]
        self._bases = np.split(ends - np.concatenate(block_sizes), edges)
        self._upcoming: list[Iterator[Window]] = []
        self._next: list[tuple[Window, Future[IntArray]]] = []
        store.allocate(int(ends[-1]))
        self._load()

    def _load(self) -> None:
        loads = [
            (
                f"block {block} of shard {order.shard}",
                self._pool.submit(self._store.load, order.shard, order.block_part(block), base),
            )
            for order, bases in zip(self._orders, self._bases, strict=True)
            for block, base in enumerate(bases.tolist())
        ]
        try:
            for what, future in loads:
                self._waiter.result(future, what)
        finally:
            for _, future in loads:
                future.cancel()

    def start(self, row: int) -> None:
        """Work out the first windows."""
        self._upcoming = [order.windows_from(row) for order in self._orders]
        self._next = [self._prepare(slot) for slot in range(len(self._orders))]

    def _prepare(self, slot: int) -> tuple[Window, "Future[IntArray]"]:
        window = next(self._upcoming[slot])
        order, blocks = self._orders[slot], self._bases[slot]
        bases = [int(blocks[part.block]) + self._store.offset(order, part) for part in window.parts]
        return window, self._pool.submit(self._store.index, order, window, bases)

    def advance(self, slot: int) -> tuple[Window, IntArray]:
        """Return the next window, and prepare the one after it."""
        window, future = self._next[slot]
        index = self._waiter.result(future, f"order of shard {self._orders[slot].shard}")
        self._next[slot] = self._prepare(slot)
        return window, index


@dataclass
class _Loading:
    """A window on its way into memory."""

    window: Window
    slots: list[int]
    blocks: "list[Future[None]]"
    index: "Future[IntArray] | None" = None


class StreamingWindows:
    """Blocks are loaded into slots, in the order in which they are needed, as far ahead as there are slots.

    Never stuck: loads run strictly in the order of need, so what fills the slots is needed before anything
    that waits for one, and slots for one window of each shard are enough to go on.
    """

    all_loaded = False

    def __init__(
        self,
        store: BlockStore,
        orders: Sequence[ShardOrder],
        pool: LoaderThreads,
        waiter: Waiter,
        slot_rows: int,
        rows_per_step: int,
    ) -> None:
        self._store, self._orders, self._pool, self._waiter = store, orders, pool, waiter
        self._slot_rows, self._rows_per_step = slot_rows, rows_per_step
        self._num_slots = num_slots(orders)
        self._free: list[int] = []
        self._upcoming: list[Iterator[Window]] = []
        self._queue: list[tuple[int, int, _Loading]] = []  # (step that needs it, slot of the shard, window)
        self._ready: list[deque[_Loading]] = []
        self._held: list[list[int]] = []
        store.allocate(self._num_slots * slot_rows)

    def start(self, row: int) -> None:
        """Load the first windows, then as far ahead as there are slots."""
        self._drain()
        self._free = list(reversed(range(self._num_slots)))
        self._upcoming = [order.windows_from(row) for order in self._orders]
        self._ready = [deque() for _ in self._orders]
        self._held = [[] for _ in self._orders]
        self._queue = []
        for slot in range(len(self._orders)):
            self._enqueue(slot)
        self._load_ahead()

    def _enqueue(self, slot: int) -> None:
        window = next(self._upcoming[slot])
        heapq.heappush(self._queue, (window.start // self._rows_per_step, slot, _Loading(window, [], [])))

    def _load_ahead(self) -> None:
        while self._free:
            _, slot, loading = self._queue[0]
            place, order = self._free.pop(), self._orders[slot]
            part = loading.window.parts[len(loading.slots)]
            base = place * self._slot_rows
            loading.slots.append(place)
            loading.blocks.append(self._pool.submit(self._store.load, order.shard, part, base))
            if len(loading.slots) == len(loading.window.parts):
                bases = [place * self._slot_rows for place in loading.slots]
                loading.index = self._pool.submit(self._store.index, order, loading.window, bases)
                heapq.heappop(self._queue)
                self._ready[slot].append(loading)
                self._enqueue(slot)

    def advance(self, slot: int) -> tuple[Window, IntArray]:
        """Load into the places of the current window, and wait for the next one."""
        self._free.extend(self._held[slot])
        self._held[slot] = []
        self._load_ahead()
        loading = self._ready[slot][0]
        shard = self._orders[slot].shard
        for part, future in zip(loading.window.parts, loading.blocks, strict=True):
            self._waiter.result(future, f"block {part.block} of shard {shard}")
        if loading.index is None:
            raise RuntimeError(f"window {loading.window} was made ready before it was complete")
        index = self._waiter.result(loading.index, f"order of shard {shard}")
        self._held[slot] = self._ready[slot].popleft().slots
        return loading.window, index

    def _drain(self) -> None:
        """Cancel the loads that wait, and wait for those under way."""
        loadings = [item for queue in self._ready for item in queue] + [item for *_, item in self._queue]
        under_way: list[Future[Any]] = [future for loading in loadings for future in loading.blocks]
        under_way += [loading.index for loading in loadings if loading.index is not None]
        for future in under_way:
            if not future.cancel():
                self._waiter.settle(future, "a load under way")


def num_slots(orders: Sequence[ShardOrder]) -> int:
    """Return the blocks that streaming holds: a window of each shard, and one to load ahead."""
    windows = [order.blocks_per_window for order in orders]
    return sum(windows) + max(windows)
