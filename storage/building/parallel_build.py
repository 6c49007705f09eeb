"""All shards of a dataset as tasks, for whoever runs them; the rows are those of the stream, bit by bit."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from dask_rl.storage.errors import InvalidDataError, explain
from dask_rl.storage.layout import ArrayLayout
from dask_rl.storage.manifest import StoredObject
from dask_rl.storage.spaces import Space

from .assembly import content_of, plan_layouts, stored_objects
from .builds import Build
from .shard_task import ShardRecipe, choose_compression, shard_tasks, write_shard_task
from .supply import Supply, Survey


class TaskRunner(Protocol):
    """Runs a function on items, here or elsewhere. Function, items and results are picklable, tasks may run twice."""

    def __call__(self, function: Callable[[Any], Any], items: Iterable[Any], name: str) -> Iterator[Any]:
        """Yield `function(item)` for each item, in the order of the items; a bounded number of them is under way."""
        ...


class ParallelShards:
    """The shards of a supply's episodes, written by tasks; what an earlier run finished is kept.

    Args:
        supply: the episodes.
        survey: what a pass over all of them told.
        shard_rows: rows of a shard; None chooses.
        build: where the shards go.

    Raises:
        InvalidDataError: there is no episode.
    """

    def __init__(
        self,
        supply: Supply,
        survey: Survey,
        observation_space: Space,
        action_space: Space,
        shard_rows: int | None,
        build: Build,
    ) -> None:
        if survey.specs is None:
            raise InvalidDataError(
                explain(f"dataset {build.target}", got="0 episodes", allowed="at least 1", fix="check the source")
            )
        self.objects: dict[str, StoredObject] = {}
        self._survey = survey
        self._build = build
        layouts = plan_layouts(survey.specs, shard_rows, int(survey.row_ends[-1]))
        self._recipe = ShardRecipe(supply, survey.specs, layouts, observation_space, action_space)

    def write(self, run: TaskRunner, progress: Callable[[int], None]) -> None:
        """Write all shards that are missing.

        Args:
            run: where.
            progress: gets the number of rows that are on the disk.
        """
        tasks = list(shard_tasks(self._survey, next(iter(self._recipe.layouts.values())).shard_rows))
        probe = functools.partial(choose_compression, self._recipe)
        (compressed,) = run(probe, tasks[:1], "choose-compression")
        layouts = {path: replace(it, compressed=compressed[path]) for path, it in self._recipe.layouts.items()}
        self._recipe = replace(self._recipe, layouts=layouts)
        self._build.start(content_of(layouts) | {"episodes": self._survey.fingerprint}, shared=True)
        shards = self._build.shards
        receipts = {task.number: shards.find_receipt(task.number) for task in tasks}
        missing = [task for task in tasks if receipts[task.number] is None]
        num_rows = int(self._survey.row_ends[-1]) - sum(task.num_rows for task in missing)
        written = run(functools.partial(write_shard_task, shards, self._recipe), missing, "write-shard")
        for task, receipt in zip(missing, written, strict=True):
            receipts[task.number] = receipt
            num_rows += task.num_rows
            progress(num_rows)
        for receipt in receipts.values():
            self.objects |= stored_objects(receipt or {})

    def finish(self) -> dict[str, ArrayLayout]:
        """Return the layouts of all arrays."""
        return dict(self._recipe.layouts)
