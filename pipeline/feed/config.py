"""What a run reads and in which batches: the settings that decide every batch, and what follows from them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.transforms import Transform

from .order import ShardOrder
from .partition import EpisodeTable, IntArray, Transitions, check_split, select_top_episodes, split
from .sampling import Halo, Sampling

BLOCK_BYTES = 64 * 2**20
"""Target of a block: reading it outweighs the price of a Dask task."""
BLOCKS_PER_WINDOW = 4
INDEX_BYTES = 16
"""Bytes of order kept for each row in memory: int64, of the current window and of the next."""
WORK_BYTES = 40
"""Bytes of a thread for each row of a window: its order while it is worked out, derived columns in float64."""
NUM_THREADS = 2
"""Of each iterator: so many blocks are loaded at once, each twice in memory where a Dask task loads it."""
MERGE_GAP_ROWS = 16
"""Unused rows between two runs that are kept in memory rather than split off."""
MAX_BLOCKS = 8192
"""However small the budget: each block is planned before streaming begins."""


@dataclass(frozen=True)
class FeedConfig:
    """The settings of a feed. Picklable: learners in other processes open their own iterators from it."""

    dataset: str
    """Path or URL of the dataset."""
    fields: tuple[str, ...]
    """What the batches hold: observations, actions, rewards, terminations, truncations, next_observations,
    next_valid, returns_to_go, or any array of the dataset (infos/behavior_logp). Nothing else is read."""
    batch_size: int
    """Rows of a global batch; a multiple of num_shards."""
    num_shards: int = 8
    """Data shards; fixed for a run, at least the number of learners."""
    seed: int = 0
    """Seed of the order, not negative."""
    content_hash: str | None = None
    """Identity of the dataset, without what was appended to it since; None takes it as it is found."""
    transforms: Mapping[str, tuple[Transform, ...]] = field(default_factory=dict)
    """Elementwise transforms by stored field; those of observations hold for next_observations too."""
    discount: float = 1.0
    """γ of returns_to_go and of n steps, which are computed from the transformed rewards."""
    sampling: Sampling = field(default_factory=Sampling)
    """Which transitions make up a batch, and what goes with each."""
    top_fraction: float | None = None
    """Use only this fraction of the episodes, the best by undiscounted return; None uses all."""
    dtype: Literal["float32", "float64"] = "float32"
    """Of every floating-point field that is delivered, and of flags such as terminations (0 or 1)."""
    block_rows: int | None = None
    """Transitions of a block; None chooses about 64 MB."""
    window_rows: int | None = None
    """Transitions shuffled together; None chooses four blocks, less where memory_budget_bytes asks for it."""
    resident: bool | None = None
    """True keeps all rows of a learner in memory, False streams them, None decides by their size."""
    memory_budget_bytes: int | None = None
    """Memory of one learner's data: rows, their order, blocks on their way, and batches; what it keeps of each
    episode, and the 2 MiB or so in which a thread unpacks what it reads, come on top. None: resident up to a quarter
    of the available memory."""
    loader: Literal["auto", "thread", "dask"] = "auto"
    """How blocks are loaded: auto takes Dask tasks inside a Dask worker and a thread elsewhere."""

    def __post_init__(self) -> None:
        """Check what needs no dataset."""
        rules = {
            "batch_size": (self.batch_size >= 1, "1 or more"),
            "num_shards": (self.num_shards >= 1, "1 or more"),
            "seed": (self.seed >= 0, "0 or more"),
            "block_rows": (self.block_rows is None or self.block_rows >= 1, "1 or more"),
            "window_rows": (self.window_rows is None or self.window_rows >= 1, "1 or more"),
            "discount": (0 <= self.discount <= 1, "0 to 1"),
            "dtype": (self.dtype in ("float32", "float64"), "float32, float64"),
            "loader": (self.loader in ("auto", "thread", "dask"), "auto, thread, dask"),
        }
        for name, (holds, allowed) in rules.items():
            if not holds:
                raise ConfigError(explain(name, got=getattr(self, name), allowed=allowed, fix=f"correct {name}"))
        if not self.fields:
            raise ConfigError(
                explain("fields", got="none", allowed="names such as observations", fix="name at least one")
            )

    @property
    def needs_next(self) -> bool:
        """Whether the batches hold next observations."""
        return any(name in ("next_observations", "next_valid") for name in self.fields)

    def to_json(self) -> dict[str, Any]:
        """Return all settings as JSON values."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        chains = {name: [step.to_json() for step in chain] for name, chain in sorted(self.transforms.items())}
        changes = {"fields": list(self.fields), "transforms": chains, "sampling": self.sampling.changes()}
        return plain | changes


@dataclass(frozen=True)
class Feed:
    """A FeedConfig worked out on its dataset: complete settings, transitions, the orders of the shards."""

    config: FeedConfig
    """With content_hash, block_rows and window_rows filled in: record this one."""
    transitions: Transitions
    num_episodes: int
    """Episodes selected."""

    @cached_property
    def shard_edges(self) -> IntArray:
        """First position of each data shard, and num_positions last."""
        return split(self.transitions.num_positions, self.config.num_shards)

    @property
    def steps_per_epoch(self) -> int:
        """ceil(usable transitions / batch_size): what one epoch means in `num_epochs`."""
        return -(-self.transitions.num_positions // self.config.batch_size)

    @property
    def rows_per_shard(self) -> int:
        """Rows that each shard gives to each batch."""
        return self.config.batch_size // self.config.num_shards

    def order(self, shard: int) -> ShardOrder:
        """Return the order of one data shard."""
        if self.config.block_rows is None or self.config.window_rows is None:
            raise ValueError("the sizes are filled in by resolve_feed")
        return ShardOrder(
            seed=self.config.seed,
            shard=shard,
            num_shards=self.config.num_shards,
            num_positions=int(self.shard_edges[shard + 1] - self.shard_edges[shard]),
            block_rows=self.config.block_rows,
            window_rows=self.config.window_rows,
            replacement=self.config.sampling.replacement,
        )

    def parameters(self) -> dict[str, Any]:
        """Return, as JSON values, all that decides the content of batch k; not how many learners share it."""
        config = self.config.to_json()
        names = (
            "seed",
            "num_shards",
            "batch_size",
            "block_rows",
            "window_rows",
            "content_hash",
            "top_fraction",
            "fields",
            "dtype",
            "discount",
        )
        # States that were saved before there was a choice have no entry for it.
        sampling = {"sampling": json.dumps(config["sampling"], sort_keys=True)} if config["sampling"] else {}
        return {
            **{name: config[name] for name in names},
            **sampling,
            "transforms": json.dumps(config["transforms"], sort_keys=True),
            "num_episodes": self.num_episodes,
            "num_positions": self.transitions.num_positions,
        }


def resolve_feed(
    config: FeedConfig, dataset: OfflineDataset, *, row_bytes: int, halo: Halo, batch_bytes: int = 0
) -> Feed:
    """Work a feed out on its dataset; the same for any number of learners.

    Args:
        config: the settings.
        dataset: the open dataset that they name.
        row_bytes: bytes of one row in memory, over all fields read.
        halo: rows around a transition that are read with it.
        batch_bytes: bytes of the global batches that are gathered at once, and of their index.

    Raises:
        ConfigError: batch_size, num_shards and the number of transitions do not fit.
    """
    selected = None
    if config.top_fraction is not None:
        selected = select_top_episodes(dataset.episode_returns(), config.top_fraction)
    table = _episode_table(dataset, needs_next=config.needs_next)
    transitions = Transitions.of(table, needs_next=config.needs_next, selected=selected)
    check_split(transitions.num_positions, config.batch_size, config.num_shards, num_learners=1)
    around = halo.before + halo.after  # beside the rows of a block; next observations are in the slack
    block_rows, window_rows = _choose_rows(
        config, transitions.num_positions, _Room(config, transitions, row_bytes, batch_bytes), around
    )
    complete = replace(config, content_hash=dataset.content_hash, block_rows=block_rows, window_rows=window_rows)
    return Feed(complete, transitions, dataset.num_episodes if selected is None else len(selected))


def work_bytes(slot_rows: int, window_rows: int, row_bytes: int) -> int:
    """Return the bytes that the threads take while each loads a block or works out the order of a window."""
    return NUM_THREADS * (slot_rows * row_bytes + WORK_BYTES * window_rows)


class _Room:
    """How large blocks may be."""

    def __init__(self, config: FeedConfig, transitions: Transitions, row_bytes: int, batch_bytes: int) -> None:
        self._row_bytes = row_bytes
        self._num_windows = config.num_shards + 1
        self._budget: int | None = None
        if config.memory_budget_bytes is not None:
            # Sized for one learner that owns every shard, so that more learners see the same order. The slack is
            # for rows between the transitions, such as next observations: some blocks hold more than others.
            held = batch_bytes
            if "returns_to_go" in config.fields:
                held += _span(transitions) * np.dtype(config.dtype).itemsize
            rows_kept = 0.8 * transitions.num_positions / (transitions.num_positions + _rows_between(transitions))
            self._budget = int(max(0, config.memory_budget_bytes - held) * rows_kept)

    def rows(self, blocks_per_window: int) -> int:
        """Return how many rows a block may hold, those around it counted, with so many blocks in a window."""
        rows = BLOCKS_PER_WINDOW * BLOCK_BYTES // blocks_per_window // self._row_bytes
        if self._budget is None:
            return rows
        slots = blocks_per_window * self._num_windows * self._row_bytes
        return min(rows, self._budget // (slots + work_bytes(1, blocks_per_window, self._row_bytes)))


def _span(transitions: Transitions) -> int:
    """Return the rows from the first transition to the last."""
    return int(transitions.row_stops[-1] - transitions.row_starts[0])


def _rows_between(transitions: Transitions) -> int:
    """Return the rows in memory that are no transitions: one behind each episode, or all up to the next one."""
    gaps = transitions.row_starts[1:] - transitions.row_stops[:-1]
    return int(np.where(gaps <= MERGE_GAP_ROWS + 1, gaps, 1).sum()) + 1


def _choose_rows(config: FeedConfig, num_positions: int, room: _Room, around: int) -> tuple[int, int]:
    block_rows = config.block_rows
    if block_rows is None:
        held_rows = room.rows(BLOCKS_PER_WINDOW)
        if held_rows < 2 * around:  # small blocks would be halo for the most part
            held_rows = room.rows(1)
        least = 1 if config.memory_budget_bytes is None else -(-num_positions // MAX_BLOCKS)
        rows_per_shard = -(-num_positions // config.num_shards)
        limit = rows_per_shard if config.window_rows is None else min(rows_per_shard, config.window_rows)
        block_rows = max(1, min(max(held_rows - around, least), limit))
    if config.window_rows is not None:
        return block_rows, config.window_rows
    fitting = [number for number in range(1, BLOCKS_PER_WINDOW + 1) if room.rows(number) >= block_rows + around]
    return block_rows, block_rows * max(fitting, default=1)


def _episode_table(dataset: OfflineDataset, *, needs_next: bool) -> EpisodeTable:
    """Read what the partition needs; the ends of episodes only where a final observation is missing."""
    ends = np.asarray(dataset.episode_ends, dtype=np.int64)
    has_final = np.asarray(dataset.has_final_observation, dtype=np.bool_)
    unseen = needs_next and not has_final.all()
    terminated = dataset.episode_terminations if unseen else np.ones(len(ends), np.bool_)
    return EpisodeTable(np.asarray(dataset.episode_starts, np.int64), ends, has_final, terminated)
