"""What every exporter does, and what an export tells."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dask_rl.storage.dataset import OfflineDataset

Progress = Callable[[int, int], None]
"""Called with the number of episodes written and their total."""


class Exporter(Protocol):
    """Writes one format. Adding one: a file like replay_buffer.py, a line in registry.py, a case in the tests."""

    @property
    def name(self) -> str:
        """What `--format` calls it."""

    def check(self, dataset: OfflineDataset) -> None:
        """Refuse early what the format has no place for.

        Raises:
            ConfigError: naming the field.
        """

    def is_export(self, path: Path) -> bool:
        """Whether `path` holds what this exporter writes and nothing beside it: it may be overwritten."""

    def write(self, dataset: OfflineDataset, path: Path, name: str, progress: Progress) -> tuple[str, ...]:
        """Write the dataset in memory bounded by a few episodes.

        Args:
            dataset: an open dataset.
            path: an empty place, where a file or directory is to be made.
            name: what the export will be called.
            progress: called after every episode or block.

        Returns:
            What the format has no place for, each with its number.
        """


@dataclass(frozen=True)
class ExportSummary:
    """What an export wrote."""

    path: str
    format: str
    num_steps: int
    num_episodes: int
    num_bytes: int
    lost: tuple[str, ...]
    """What the format has no place for."""
