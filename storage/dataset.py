"""An offline dataset, opened: cheap to open, cheap to pickle, read by rows or by episodes."""

import os
from collections.abc import Hashable, Iterator
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import dask.array as da
import numpy as np
import numpy.typing as npt

from .blocking import check_block_rows, choose_block_rows
from .episode import Episode
from .errors import ConfigError, CorruptDataError, explain
from .facts import DatasetFacts
from .html import html_table
from .locate import locate
from .location import Location
from .nested import Columns, unflatten
from .reading.contents import Contents, load_contents
from .reading.joined_reader import JoinedReader
from .reading.reader import RowReader
from .reading.readers import open_reader
from .schema import (
    ACTIONS,
    INFOS_PREFIX,
    OBSERVATIONS,
    REWARDS,
    TERMINATIONS,
    TRUNCATIONS,
    ArraySpec,
    is_part_of,
)
from .spaces import describe_space
from .verify import VerifyReport, verify

Array = npt.NDArray[Any]


class OfflineDataset(DatasetFacts):
    """A committed dataset. Made by `OfflineDataset.open`, written by `DatasetWriter`.

    Rows follow the "T+1" convention: an episode of T steps occupies T+1 rows, the last of which holds its final
    observation only. Files are opened at the first read and never pickled; reading is safe from several threads.
    """

    def __init__(self, location: Location, contents: Contents) -> None:
        """Use `OfflineDataset.open`."""
        super().__init__(location, contents)
        self._readers: dict[str, RowReader] = {}
        location.expect(contents.commit)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, content_hash: str | None = None) -> Self:
        """Open a dataset after a cheap validation that reads no rows; `verify(deep=True)` reads all.

        Args:
            path: a directory, or a URL that fsspec knows.
            content_hash: of the generation that is wanted: what was appended since is left out. None: the newest.

        Raises:
            DatasetNotFoundError: there is nothing at this path.
            DatasetError: there is something else, an unknown schema version, or no such generation.
            CorruptDataError: files are missing, or are not what was committed.
        """
        location = locate(path)
        dataset = cls(location, load_contents(location, content_hash))
        try:
            _ = dataset.episode_ends  # checked as they are read
        except CorruptDataError:
            if load_contents(locate(path), content_hash).content_hash == dataset.content_hash:
                raise
            return cls.open(path, content_hash=content_hash)  # another dataset took its place: no damage
        return dataset

    @cached_property
    def episode_terminations(self) -> npt.NDArray[np.bool_]:
        """Whether each episode ended by itself, (num_episodes,)."""
        return self._last_step(TERMINATIONS)

    @cached_property
    def episode_truncations(self) -> npt.NDArray[np.bool_]:
        """Whether each episode was cut off, (num_episodes,)."""
        return self._last_step(TRUNCATIONS)

    @cached_property
    def _returns(self) -> npt.NDArray[np.float64]:
        returns = np.zeros(self.num_episodes)
        for start, stop, rewards in self._blocks(REWARDS):
            # The final rows are 0: sums over T+1 rows are sums over T steps.
            first = int(np.searchsorted(self.episode_ends, start, side="right"))
            last = int(np.searchsorted(self.episode_starts, stop, side="left"))
            cuts = np.maximum(self.episode_starts[first:last] - start, 0)
            returns[first:last] += np.add.reduceat(rewards, cuts, dtype=np.float64)
        return returns

    def episode_returns(self) -> npt.NDArray[np.float64]:
        """Return the undiscounted return of each episode, (num_episodes,); read once."""
        return self._returns

    def reader(self, field: str) -> RowReader:
        """Return the reader of one array.

        Raises:
            ConfigError: there is no such field.
        """
        reader = self._readers.get(field)
        if reader is None:
            if field not in self.contents.arrays:
                raise ConfigError(
                    explain("field", got=repr(field), allowed=", ".join(self.contents.arrays), fix="choose one")
                )
            reader = self._open_reader(self.contents.arrays[field])
            # Two threads may come here at once: both must get the same reader.
            reader = self._readers.setdefault(field, reader)
        return reader

    def _open_reader(self, spec: ArraySpec) -> RowReader:
        parts = self.contents.parts
        readers = [open_reader(self.location, it.layouts[spec.path], self.contents.commit) for it in parts]
        if len(readers) == 1:
            return readers[0]
        return JoinedReader(spec, readers, [it.part.first_row for it in parts], self.num_rows)

    def read(self, field: str, start: int, stop: int, out: Array | None = None) -> Array:
        """Return the ROWS [start, stop) of a field.

        Args:
            field: one of `arrays`.
            start: first row.
            stop: one after the last row.
            out: (stop - start, *row_shape) in the array's dtype, contiguous; filled and returned.

        Raises:
            ConfigError: no such field, rows outside, or an `out` that does not fit.
            CorruptDataError: the bytes are not what was written.
        """
        return self.reader(field).read(start, stop, out)

    def step_mask(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return which of the rows [start, stop) are steps, (stop - start,); the others are final rows."""
        mask = np.ones(stop - start, bool)
        first, last = np.searchsorted(self.episode_ends, [start + 1, stop + 1])
        mask[self.episode_ends[first:last] - 1 - start] = False
        return mask

    def episode(self, number: int) -> Episode:
        """Return one episode.

        Raises:
            ConfigError: there is no such episode.
        """
        if not 0 <= number < self.num_episodes:
            raise ConfigError(
                explain("episode", got=number, allowed=f"0 to {self.num_episodes - 1}", fix="ask for one it has")
            )
        start, stop = int(self.episode_starts[number]), int(self.episode_ends[number])
        seed = int(self.episode_seeds[number])
        return Episode(
            observations=self._read_parts(OBSERVATIONS, start, stop),
            actions=self._read_parts(ACTIONS, start, stop - 1),
            rewards=self.read(REWARDS, start, stop - 1),
            terminations=self.read(TERMINATIONS, start, stop - 1),
            truncations=self.read(TRUNCATIONS, start, stop - 1),
            infos={
                field.removeprefix(INFOS_PREFIX): self.read(field, start, stop - 1)
                for field in self.contents.arrays
                if field.startswith(INFOS_PREFIX)
            },
            has_final_observation=bool(self.has_final_observation[number]),
            id=int(self.episode_ids[number]),
            seed=None if seed < 0 else seed,
        )

    def episodes(self, start: int = 0, stop: int | None = None) -> Iterator[Episode]:
        """Yield the episodes [start, stop), all by default."""
        for number in range(start, self.num_episodes if stop is None else stop):
            yield self.episode(number)

    def to_dask(self, field: str, block_rows: int | None = None) -> da.Array:
        """Return all rows of a field as a dask array, whose chunks do not straddle shards.

        The rows of final observations are among them, with an action and a reward of zeros: `step_mask` tells them.

        Args:
            field: one of `arrays`.
            block_rows: rows of a chunk; None takes about 64 MB.

        Raises:
            ConfigError: no such field, or blocks that straddle shards.
        """
        self.reader(field)
        spec = self.contents.arrays[field]
        if block_rows is None:
            block_rows = choose_block_rows(spec.row_bytes, self.shard_rows)
        check_block_rows(block_rows, self.shard_rows)
        rows = tuple(stop - start for start, stop in self.block_ranges(block_rows))
        return da.map_blocks(
            _read_block,
            name=f"{field.replace('/', '-')}-{self.content_hash[:16]}-{block_rows}",
            chunks=(rows, *((length,) for length in spec.row_shape)),
            dtype=spec.dtype,
            meta=np.empty((0,) * (1 + len(spec.row_shape)), spec.dtype),
            dataset=self,
            field=field,
        )

    def verify(self, deep: bool = False) -> VerifyReport:
        """Check that the dataset is what was committed; `deep` reads and checks every byte and value.

        Raises:
            CorruptDataError: a file is missing or damaged; names file, array, rows and remedy.
            InvalidDataError: a value that no learner may see.
        """
        return verify(self, deep)

    def describe(self) -> dict[str, Any]:
        """Return the facts about the dataset, JSON-able."""
        returns, lengths = self.episode_returns(), self.episode_lengths
        return {
            "path": self.path,
            "num_steps": self.num_steps,
            "num_episodes": self.num_episodes,
            "num_terminated": int(self.episode_terminations.sum()),
            "num_truncated": int((self.episode_truncations & ~self.episode_terminations).sum()),
            "num_without_final_observation": int((~self.has_final_observation).sum()),
            "return_mean": float(returns.mean()),
            "return_min": float(returns.min()),
            "return_max": float(returns.max()),
            "length_mean": float(lengths.mean()),
            "length_min": int(lengths.min()),
            "length_max": int(lengths.max()),
            "observation_space": describe_space(self.observation_space),
            "action_space": describe_space(self.action_space),
            "environment": self.environment,
            "ref_scores": self.ref_scores,
            "arrays": {field: f"{s.dtype.name} {s.row_shape}" for field, s in self.contents.arrays.items()},
            "num_rows": self.num_rows,
            "num_bytes": sum(entry.size for entry in self.contents.commit.objects.values()),
            "shard_rows": self.shard_rows,
            "generation": self.generation,
            "schema": self.contents.attributes.schema_version,
            "provenance": self.provenance,
            "content_hash": self.content_hash,
        }

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        for reader in self._readers.values():
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.location, "contents": self.contents, "_readers": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.location.expect(self.contents.commit)

    def __dask_tokenize__(self) -> Hashable:
        return (type(self).__name__, self.path, self.content_hash)

    def __repr__(self) -> str:
        return (
            f"OfflineDataset({self.path!r}, num_steps={self.num_steps}, num_episodes={self.num_episodes}, "
            f"observations={describe_space(self.observation_space)}, actions={describe_space(self.action_space)})"
        )

    def _repr_html_(self) -> str:
        return html_table("dataset", self.describe())

    def _read_parts(self, name: str, start: int, stop: int) -> Columns:
        """Return rows of a field or, where its space is nested, of all its parts by key."""
        paths = [path for path in self.contents.arrays if is_part_of(path, name)]
        return unflatten(name, {path: self.read(path, start, stop) for path in paths})

    def _blocks(self, field: str) -> Iterator[tuple[int, int, Array]]:
        row_bytes = self.contents.arrays[field].row_bytes
        for start, stop in self.block_ranges(choose_block_rows(row_bytes, self.shard_rows)):
            yield start, stop, self.read(field, start, stop)

    def _last_step(self, field: str) -> npt.NDArray[np.bool_]:
        rows = self.episode_ends - 2
        return np.concatenate(
            [block[rows[(rows >= start) & (rows < stop)] - start] for start, stop, block in self._blocks(field)]
        )


def _read_block(*, dataset: OfflineDataset, field: str, block_info: dict[Any, Any] | None = None) -> Array:
    start, stop = (block_info or {})[None]["array-location"][0]
    return dataset.read(field, start, stop)
