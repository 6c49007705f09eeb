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
    """Memory of one learner's data; None: resident up to a quarter of the available memory."""
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


def resolve_feed(config: FeedConfig, dataset: OfflineDataset, *, row_bytes: int, halo: Halo) -> Feed:
    """Work a feed out on its dataset; the same for any number of learners.

    Args:
        config: the settings.
        dataset: the open dataset that they name.
        row_bytes: bytes of one row in memory, over all fields read.
        halo: rows around a transition that are read with it.

    Raises:
        ConfigError: batch_size, num_shards and the number of transitions do not fit.
    """
    selected = None
    if config.top_fraction is not None:
        selected = select_top_episodes(dataset.episode_returns(), config.top_fraction)
    table = _episode_table(dataset, needs_next=config.needs_next)
    transitions = Transitions.of(table, needs_next=config.needs_next, selected=selected)
    check_split(transitions.num_positions, config.batch_size, config.num_shards, num_learners=1)
    block_rows, window_rows = _choose_rows(config, transitions, row_bytes, halo)
    complete = replace(config, content_hash=dataset.content_hash, block_rows=block_rows, window_rows=window_rows)
    return Feed(complete, transitions, dataset.num_episodes if selected is None else len(selected))


def _choose_rows(config: FeedConfig, transitions: Transitions, row_bytes: int, halo: Halo) -> tuple[int, int]:
    window_bytes = BLOCKS_PER_WINDOW * BLOCK_BYTES
    if config.memory_budget_bytes is not None:
        # Sized for one learner that owns every shard, so that more learners see the same order. The slack is
        # for the rows of next observations, one for each piece of an episode: some blocks hold more than others.
        num_positions, num_pieces = transitions.num_positions, len(transitions.row_starts)
        held = num_positions * np.dtype(config.dtype).itemsize if "returns_to_go" in config.fields else 0
        rows_kept = 0.8 * num_positions / (num_positions + num_pieces)
        share = max(0, config.memory_budget_bytes - held) / (config.num_shards + 1)
        window_bytes = min(window_bytes, int(share * rows_kept))
    rows_per_shard = -(-transitions.num_positions // config.num_shards)
    rows_around = halo.before + halo.after  # beside the rows of a block; next observations are in the slack
    block_rows = config.block_rows
    if block_rows is None:
        held_rows = window_bytes // BLOCKS_PER_WINDOW // row_bytes
        if held_rows < 2 * rows_around:  # small blocks would be halo for the most part
            held_rows = window_bytes // row_bytes
        limit = rows_per_shard if config.window_rows is None else min(rows_per_shard, config.window_rows)
        block_rows = max(1, min(held_rows - rows_around, limit))
    if config.window_rows is not None:
        return block_rows, config.window_rows
    num_blocks = window_bytes // ((block_rows + rows_around) * row_bytes)
    return block_rows, block_rows * max(1, min(BLOCKS_PER_WINDOW, num_blocks))


def _episode_table(dataset: OfflineDataset, *, needs_next: bool) -> EpisodeTable:
    """Read what the partition needs; the ends of episodes only where a final observation is missing."""
    ends = np.asarray(dataset.episode_ends, dtype=np.int64)
    has_final = np.asarray(dataset.has_final_observation, dtype=np.bool_)
    unseen = needs_next and not has_final.all()
    terminated = dataset.episode_terminations if unseen else np.ones(len(ends), np.bool_)
    return EpisodeTable(np.asarray(dataset.episode_starts, np.int64), ends, has_final, terminated)
