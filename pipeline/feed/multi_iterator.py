"""The iterator of one learner over the datasets of several modules, in step with each other."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from dask_rl.learners.batch import ModuleID, MultiBatch
from dask_rl.storage.errors import ConfigError, explain

from .iterator import DatasetIterator


class MultiIterator:
    """An endless stream of batches by module id, each from an iterator of the module's own. Not thread-safe.

    All of them have the same data shards and rows per shard.
    """

    is_aligned = True

    def __init__(self, iterators: Mapping[ModuleID, DatasetIterator]) -> None:
        self.step = 0
        self._iterators = {module_id: iterators[module_id] for module_id in sorted(iterators)}
        first = next(iter(self._iterators.values()))
        self.shards = first.shards
        self.rows_per_shard = first.rows_per_shard

    def next_batch(self) -> MultiBatch:
        """Return the next batch of every module, valid until the next call.

        Raises:
            WaitTimeoutError: data took too long; calling again tries again.
        """
        batch: MultiBatch = {}
        for module_id, iterator in self._iterators.items():
            iterator.seek(self.step)  # some are one ahead after a call in which another one failed
            batch[module_id] = iterator.next_batch()
        self.step += 1
        return batch

    def seek(self, step: int) -> None:
        """Make the next batch that of `step`, of every module."""
        for iterator in self._iterators.values():
            iterator.seek(step)
        self.step = step

    def state_dict(self) -> dict[str, Any]:
        """Return the step, and by module all that decides the content of its batches; the same on all learners."""
        parameters = {module_id: iterator.feed.parameters() for module_id, iterator in self._iterators.items()}
        return {"step": self.step, "parameters": parameters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Seek to a saved step.

        Raises:
            ConfigError: it belongs to other modules, other data or another order.
        """
        parameters = state["parameters"]
        if sorted(parameters) != list(self._iterators):
            raise ConfigError(
                explain(
                    "iterator state",
                    got=f"modules {', '.join(sorted(parameters))}",
                    allowed=", ".join(self._iterators),
                    fix="resume with the datasets that the run began with, or start a new run",
                )
            )
        for module_id, iterator in self._iterators.items():
            try:
                iterator.load_state_dict({"step": state["step"], "parameters": parameters[module_id]})
            except ConfigError as error:
                raise ConfigError(f"module {module_id}: {error}") from None
        self.step = int(state["step"])

    def close(self) -> None:
        """End all threads; batches taken before stay readable."""
        with ExitStack() as stack:
            for iterator in self._iterators.values():
                stack.callback(iterator.close)
