"""Verification: every byte is what was committed, and every value is one that a learner may see."""

import copy
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .blocking import choose_block_rows
from .errors import InvalidDataError, explain
from .location import REMEDY, Location
from .manifest import Commit
from .reading.contents import Contents, load_contents, rows_of
from .reading.joined_reader import JoinedReader
from .reading.part_contents import corrupt_file
from .reading.reader import RowReader, ShardReader
from .reading.remote_reader import RemoteShardReader
from .reading.shard_index import corrupt
from .schema import COMMIT_NAME, OBSERVATIONS, TERMINATIONS, TRUNCATIONS, ArraySpec, is_part_of

Array = npt.NDArray[Any]


class Verifiable(Protocol):
    """What verification needs of a dataset."""

    location: Location
    contents: Contents

    @property
    def episode_ends(self) -> npt.NDArray[np.int64]:
        """Exclusive row ends."""
        ...

    def reader(self, field: str) -> RowReader:
        """Return the reader of one array."""
        ...

    def block_ranges(self, block_rows: int) -> Iterator[tuple[int, int]]:
        """Yield the row ranges of blocks."""
        ...


@dataclass(frozen=True)
class VerifyReport:
    """What was verified; a fault is an error, never a line in here."""

    deep: bool
    """Whether every byte and value was read, or the files' presence and sizes only."""
    num_objects: int
    num_bytes: int
    num_rows: int
    seconds: float


def verify(dataset: Verifiable, deep: bool) -> VerifyReport:
    """Check a dataset against its manifest; see `OfflineDataset.verify`.

    Raises:
        CorruptDataError: a file is missing, foreign or damaged; names file, array, rows and remedy.
        InvalidDataError: a value that no learner may see.
    """
    began = time.perf_counter()
    location = copy.copy(dataset.location)  # what the dataset knows of its files is left as it is
    # The generation that is open: neither what was appended since, nor what took its place.
    contents = load_contents(location, dataset.contents.content_hash)
    commit = contents.commit
    _check_strangers(location, contents)
    if deep:
        for spec in contents.arrays.values():
            _check_chunks(dataset, spec)
            _check_values(dataset, spec)
        for key in commit.objects:
            _check_object(location, commit, key)
    return VerifyReport(
        deep=deep,
        num_objects=len(commit.objects),
        num_bytes=sum(entry.size for entry in commit.objects.values()),
        num_rows=commit.num_rows,
        seconds=time.perf_counter() - began,
    )


def _check_strangers(location: Location, contents: Contents) -> None:
    """Refuse chunks that nobody committed: zarr-python would read them."""
    strangers = location.sizes().keys() - contents.commit.objects.keys() - {COMMIT_NAME}
    for name in sorted(strangers):
        if any(name.startswith((f"{it.prefix}data/", f"{it.prefix}meta/")) for it in contents.commit.parts):
            key = name.partition("/c/")[0]
            raise corrupt(location, name, key, (0, contents.commit.num_rows), "a file", "what commit.json lists")


def _check_chunks(dataset: Verifiable, spec: ArraySpec) -> None:
    reader = dataset.reader(spec.path)
    for part in reader.parts if isinstance(reader, JoinedReader) else [reader]:
        _check_part_chunks(dataset, spec, part)


def _check_part_chunks(dataset: Verifiable, spec: ArraySpec, reader: RowReader) -> None:
    assert isinstance(reader, ShardReader | RemoteShardReader)
    layout = reader.layout
    for number in range(layout.num_shards):
        wanted = np.arange(layout.chunks_per_shard) < layout.chunks_in_shard(number)
        wrong = np.flatnonzero(reader.stored_chunks(number) != wanted)
        if len(wrong):
            start = layout.first_row + number * layout.shard_rows + int(wrong[0]) * layout.chunk_rows
            got = "a missing chunk" if wanted[wrong[0]] else "a chunk beyond the last row"
            rows = (start, start + layout.chunk_rows)
            raise corrupt(dataset.location, layout.shard_key(number), spec.key, rows, got, "one chunk for all rows")


def _check_values(dataset: Verifiable, spec: ArraySpec) -> None:
    """Read every row, which checks every checksum, and look at the values."""
    ends = dataset.episode_ends
    for start, stop in dataset.block_ranges(choose_block_rows(spec.row_bytes, dataset.contents.commit.shard_rows)):
        block = dataset.reader(spec.path).read(start, stop)
        if spec.dtype.kind == "f":
            _require(np.isfinite(block), dataset, spec, start, block, "finite numbers")
        if not is_part_of(spec.path, OBSERVATIONS):
            final = ends[np.searchsorted(ends, start + 1) : np.searchsorted(ends, stop + 1)] - 1 - start
            wrong = final[(block[final] != 0).any(axis=tuple(range(1, block.ndim)))]
            good = np.ones(len(block), bool)
            good[wrong] = False
            _require(good, dataset, spec, start, block, "0 in the row of a final observation")
        if spec.path in (TERMINATIONS, TRUNCATIONS):
            good = ~block
            good[ends[np.searchsorted(ends, start + 2) : np.searchsorted(ends, stop + 2)] - 2 - start] = True
            _require(good, dataset, spec, start, block, "an end at an episode's last step only")


def _require(good: Array, dataset: Verifiable, spec: ArraySpec, first_row: int, block: Array, allowed: str) -> None:
    if good.all():
        return
    at = tuple(int(i) for i in np.argwhere(~good)[0])
    row = first_row + at[0]
    episode = int(np.searchsorted(dataset.episode_ends, row, side="right"))
    step = row - (int(dataset.episode_ends[episode - 1]) if episode else 0)
    part = next(it for it in reversed(dataset.contents.commit.parts) if it.first_row <= row)
    shard = (row - part.first_row) // part.shard_rows
    name = f"{part.prefix}{spec.key}/c/{shard}" + "/0" * len(spec.row_shape)
    value = block[at].tolist()
    raise InvalidDataError(
        explain(
            f"{name} in dataset {dataset.location.url} ({spec.path}, row {row}, episode {episode}, step {step})",
            got=value if np.ndim(value) == 0 else f"{value[:4]}",
            allowed=allowed,
            fix=REMEDY,
        )
    )


def _check_object(location: Location, commit: Commit, key: str) -> None:
    wanted = commit.objects[key].sha256
    digest = hashlib.sha256()
    try:
        for piece in location.pieces(key):
            digest.update(piece)
    except FileNotFoundError as error:
        raise corrupt_file(location, key + rows_of(key, commit), "no such file", "the file as committed") from error
    if digest.hexdigest() != wanted:
        got, allowed = f"sha256 {digest.hexdigest()[:12]}…", f"{wanted[:12]}… as committed"
        raise corrupt_file(location, key + rows_of(key, commit), got, allowed)
