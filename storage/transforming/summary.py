"""What a transform wrote, and what it left out."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from dask_rl.storage.dataset import OfflineDataset


@dataclass(frozen=True)
class WrittenDataset:
    """The facts of one dataset that was written."""

    path: str
    num_steps: int
    num_episodes: int
    num_terminated: int
    num_truncated: int
    return_mean: float
    return_min: float
    return_max: float
    content_hash: str

    @classmethod
    def of(cls, dataset: OfflineDataset) -> "WrittenDataset":
        """Return those of a dataset."""
        facts = dataset.describe()
        return cls(**{item.name: facts[item.name] for item in fields(WrittenDataset)})


@dataclass(frozen=True)
class TransformSummary(WrittenDataset):
    """What a transform wrote, and what it left out and why."""

    num_source_episodes: int
    num_source_steps: int
    dropped: Mapping[str, int]
    """Episodes that were left out, by reason."""
    validation: WrittenDataset | None
    """The second dataset of a split."""
    notes: tuple[str, ...]
    """What the user should look at."""
