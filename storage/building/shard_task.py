"""One shard of all arrays as a unit of work: the same bytes whoever does it, and harmless to do twice.

Memory is bounded by one shard and one episode, for all tasks of a process together.
"""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.encoding import RawShard, compresses, cut_shard, encode_shard
from dask_rl.storage.errors import DatasetError, explain
from dask_rl.storage.layout import ArrayLayout
from dask_rl.storage.schema import ArraySpec
from dask_rl.storage.spaces import Space
from dask_rl.storage.validation import EpisodeChecker

from .builds import Shards
from .shard_store import Receipt
from .supply import Supply, Survey, episode_checksum

Array = npt.NDArray[Any]

_ONE_AT_A_TIME = threading.Lock()
"""Threads of a worker take turns: its memory is that of one shard."""


@dataclass(frozen=True)
class ShardRecipe:
    """What all shards of a dataset have in common; picklable, and small."""

    supply: Supply
    specs: Mapping[str, ArraySpec]
    layouts: Mapping[str, ArrayLayout]
    """By field."""
    observation_space: Space
    action_space: Space


@dataclass(frozen=True)
class ShardTask:
    """Which rows a shard holds, and which episodes they are of."""

    number: int
    num_rows: int
    """Rows that hold data."""
    start: int
    """The supply's number of the first episode."""
    stop: int
    """One after that of the last."""
    first_episode: int
    """The dataset's number of the first episode."""
    skip_rows: int
    """Rows of the first episode that lie in earlier shards."""
    checksums: npt.NDArray[np.uint32]
    """Of the episodes, as the survey saw them."""


def shard_tasks(survey: Survey, shard_rows: int) -> Iterator[ShardTask]:
    """Cut a dataset into its shards."""
    ends = survey.row_ends
    num_rows = int(ends[-1])
    for number, first_row in enumerate(range(0, num_rows, shard_rows)):
        stop_row = min(first_row + shard_rows, num_rows)
        first = int(np.searchsorted(ends, first_row, side="right"))
        last = int(np.searchsorted(ends, stop_row, side="left"))
        yield ShardTask(
            number=number,
            num_rows=stop_row - first_row,
            start=int(survey.numbers[first]),
            stop=int(survey.numbers[last]) + 1,
            first_episode=first,
            skip_rows=first_row - (int(ends[first - 1]) if first else 0),
            checksums=survey.checksums[first : last + 1],
        )


def choose_compression(recipe: ShardRecipe, task: ShardTask) -> dict[str, bool]:
    """Return by field whether zstd is worth it, judged by one shard."""
    with _ONE_AT_A_TIME:
        return {path: compresses(raw) for path, raw in _assemble(recipe, task).items()}


def write_shard_task(shards: Shards, recipe: ShardRecipe, task: ShardTask) -> Receipt:
    """Write one shard of all arrays, unless its receipt is there; return its receipt.

    Raises:
        InvalidDataError: naming the episode, the step, the field and the value.
        DatasetError: the disk refuses, the directory is not to be seen here, or the episodes are others than when
            they were surveyed.
    """
    with _ONE_AT_A_TIME:
        shards.require()
        receipt = shards.find_receipt(task.number)
        return receipt or write_shard(shards, task.number, recipe.layouts, _assemble(recipe, task))


def write_shard(
    shards: Shards,
    number: int,
    layouts: Mapping[str, ArrayLayout],
    raws: Mapping[str, RawShard],
    pool: Executor | None = None,
) -> Receipt:
    """Encode and write one shard of all arrays, and then its receipt.

    Args:
        shards: where to.
        number: which shard.
        layouts: by field.
        raws: its rows, by field.
        pool: writes several arrays at a time; None: one after the other.
    """

    def write(path: str) -> dict[str, Any]:
        encoded = encode_shard(layouts[path], raws[path])
        shards.write_object(layouts[path].shard_key(number), encoded)
        return {"size": encoded.size, "sha256": encoded.sha256, "digest": raws[path].digest}

    entries = map(write, layouts) if pool is None else pool.map(write, layouts)
    keys = [layout.shard_key(number) for layout in layouts.values()]
    receipt: Receipt = dict(zip(keys, entries, strict=True))
    shards.write_receipt(number, receipt)
    return receipt


def _assemble(recipe: ShardRecipe, task: ShardTask) -> dict[str, RawShard]:
    """Get the episodes of a shard, check them, and lay their rows end to end."""
    checker = EpisodeChecker(recipe.specs, recipe.observation_space, recipe.action_space)
    layouts = recipe.layouts
    # Untouched pages cost nothing: the last shard takes what it needs.
    buffers = {path: np.empty((layout.shard_rows, *layout.row_shape), layout.dtype) for path, layout in layouts.items()}
    fill, skip, count = 0, task.skip_rows, 0
    for episode in recipe.supply.episodes(task.start, task.stop):
        if episode is None:
            continue
        if count == len(task.checksums) or episode_checksum(episode) != task.checksums[count]:
            raise _changed(task.first_episode + count)
        columns = checker.columns(episode, task.first_episode + count)
        rows = min(len(episode) + 1 - skip, task.num_rows - fill)
        for path, column in columns.items():
            copy_rows(column, skip, buffers[path][fill : fill + rows])
        fill, skip, count = fill + rows, 0, count + 1
    if count != len(task.checksums) or fill != task.num_rows:
        raise _changed(task.first_episode + count)
    return {path: cut_shard(layout, buffers[path], fill) for path, layout in layouts.items()}


def copy_rows(column: Array, start: int, target: Array) -> None:
    """Fill `target` with the rows of `column` from `start` on; one that is shorter is continued with zeros."""
    part = column[start : start + len(target)]
    target[: len(part)] = part
    target[len(part) :] = 0


def _changed(episode: int) -> DatasetError:
    return DatasetError(
        explain(
            f"episode {episode}",
            got="other values than a moment ago",
            allowed="a source that stays as it is while it is imported",
            fix="run the same again",
        )
    )
