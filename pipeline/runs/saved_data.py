"""What a run's data were when it began, as its latest checkpoint has it: what is worked out once, not at each start."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dask_rl.learners.batch import ModuleID
from dask_rl.learners.saved_module import reading
from dask_rl.storage.checkpoints.store import CheckpointStore

from .run_directory import RunDirectory
from .trained_policy import by_module

_ITERATORS = "learner/iterators"


@dataclass(frozen=True)
class SavedData:
    """The data of one module."""

    content_hash: str
    """Of the dataset: what was appended to it since is left out."""
    normalize: Mapping[str, Any] | None
    """Standardisation of the observations, as `normalizers_to_json` has it."""
    rows: tuple[int, int] | None
    """Transitions of a block, and of a window; None before the first step."""


def load_saved_data(run: RunDirectory, module_ids: Collection[ModuleID]) -> Mapping[ModuleID, SavedData] | None:
    """Return what a run's data were, by module id; None before its first checkpoint.

    Raises:
        CheckpointError: the latest checkpoint is damaged.
    """
    store = CheckpointStore(run.checkpoints)
    path = store.latest()
    if path is None:
        return None
    iterators, metadata = store.load(component=_ITERATORS)
    with reading(path):
        hashes, normalizers = (by_module(metadata[key], module_ids) for key in ("content_hash", "normalize"))
        feeds: Mapping[ModuleID, Any] = {}
        for iterator in iterators.values():
            feeds = by_module(iterator["parameters"], module_ids)
        return {
            name: SavedData(str(hashes[name]), normalizers[name], _rows(feeds[name]) if feeds else None)
            for name in module_ids
        }


def _rows(parameters: Mapping[str, Any]) -> tuple[int, int]:
    return int(parameters["block_rows"]), int(parameters["window_rows"])
