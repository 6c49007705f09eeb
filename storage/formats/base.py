"""What every importer gives, and what an import is told and tells."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field

from dask_rl.storage.building.step_columns import StepColumns
from dask_rl.storage.errors import SourceFormatError, explain
from dask_rl.storage.nested import Columns

Array = npt.NDArray[Any]
Space = spaces.Space[Any]


class ImportOptions(BaseModel):
    """What the user knows about a source that its files do not say."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_episode_steps: int | None = Field(default=None, ge=1)
    """Time limit in steps: a termination after exactly this many steps is taken as a truncation."""
    environment: str | None = None
    """Gymnasium id whose spaces the dataset gets; by default those of the source, or inferred ones."""
    normalized_actions: bool = False
    """The source's actions lie in [-1, 1]: map them linearly to the bounds of the action space."""
    clip_actions: bool = False
    """Clip actions to the bounds of the action space instead of refusing them."""
    on_invalid: Literal["error", "drop"] = "error"
    """Stop at the first invalid episode, or leave such episodes out and count them."""
    shard_rows: int | None = Field(default=None, ge=1)
    """Rows of one shard; by default chosen by size."""


@dataclass(frozen=True)
class RawEpisode:
    """One episode as the source has it: nothing is checked or cast yet."""

    origin: str
    """The file, for messages."""
    id: int
    """The source's own number of the episode."""
    observations: Columns  # (T+1, *obs_shape), or (T, *obs_shape) without a final observation; nested: by key
    actions: Columns  # (T, *action_shape); nested: by key
    rewards: Array  # (T,)
    terminations: Array  # (T,) bool
    truncations: Array  # (T,) bool
    infos: Mapping[str, Array] = field(default_factory=dict)  # each (T, …)
    has_final_observation: bool = True
    seed: int | None = None


@dataclass(frozen=True)
class Source:
    """A source that was opened: what it declares, and its episodes."""

    rule: str
    """How the ends of episodes were found, in one sentence for the summary."""
    episodes: Callable[[int, int | None], Iterator[RawEpisode]]
    """`episodes(start, stop)` yields the episodes start … stop - 1 in the source's order; `stop` None: to the last.

    It seeks to the first one, where the format allows, and may be called any number of times, in other processes as
    well: it is picklable, and small (a `functools.partial` of a module's function over paths, offsets and tables).
    """
    num_episodes: int | None = None
    """None if it is known only after a pass."""
    num_steps: int | None = None
    """For progress; None if it is known only at the end."""
    observation_space: Space | None = None
    """None: to be inferred from the data."""
    action_space: Space | None = None
    """None: to be inferred from the data."""
    environment: str | None = None
    """Gymnasium id, where the source names one."""
    ref_scores: tuple[float, float] | None = None
    """Returns of a random policy and of an expert."""
    left_out: tuple[str, ...] = ()
    """Columns of the source that the dataset does not get."""
    notes: tuple[str, ...] = ()
    """What the user should look at, such as rows that belong to no episode, with their number and the reason."""
    whole: Callable[[Space, Space, bool], StepColumns | None] | None = None
    """Where all episodes lie in memory: gives them at once for these spaces of observations and actions, floats as
    float32 if the last argument says so. What they do not fit it leaves to `episodes`, and returns None."""


class Importer(Protocol):
    """Reads one family of formats. Adding one: a file like minari.py, a line in registry.py, the suite."""

    @property
    def name(self) -> str:
        """What `--format` calls it."""

    def detect(self, path: Path) -> bool:
        """Whether `path` is of this format, judged cheaply.

        Raises:
            SourceFormatError: it would be, but is damaged.
        """

    def read(self, path: Path, options: ImportOptions) -> Source:
        """Open `path`; the episodes are read later.

        Raises:
            SourceFormatError: not of this format, damaged, or of a kind that is not supported.
        """


@dataclass(frozen=True)
class ImportSummary:
    """What an import wrote, and what it had to decide."""

    path: str
    format: str
    num_steps: int
    num_episodes: int
    num_terminated: int
    num_truncated: int
    return_mean: float
    return_min: float
    return_max: float
    observation_space: str
    action_space: str
    content_hash: str
    rule: str
    """How ends were found, and how spaces and dtypes were."""
    dropped: Mapping[str, int]
    """Episodes left out, by reason."""
    left_out: tuple[str, ...]
    """Columns of the source that were left out."""
    notes: tuple[str, ...] = ()
    """What the user should look at."""


def flags_at_end(num_steps: int, flag: bool) -> Array:
    """Return (T,) bool, all False but the last, which is `flag`."""
    flags = np.zeros(num_steps, dtype=bool)
    if num_steps:
        flags[-1] = flag
    return flags


def environment_limit(name: str | None) -> int | None:
    """Return the time limit of an environment in steps; None if it has none, or is unknown."""
    if name is None:
        return None
    try:
        return gymnasium.spec(name).max_episode_steps
    except gymnasium.error.Error:  # the import reports the unknown name in its own words
        return None


def as_flags(values: Array, subject: str, first_row: int = 0) -> Array:
    """Return which rows are not 0, (rows,) bool.

    Args:
        values: (rows,), or (rows, 1).
        subject: what they are, for messages.
        first_row: number of the first of them, for messages.

    Raises:
        SourceFormatError: they are no numbers, not one a row, or one is missing, which is no flag that is set.
    """
    if values.dtype.kind not in "biuf" or not values.ndim or values.size != len(values):
        got = f"values of type {values.dtype} and shape {values.shape}"
        raise SourceFormatError(explain(subject, got=got, allowed="one flag a row", fix="convert them first"))
    flags = values.reshape(-1)
    missing = np.isnan(flags)
    if missing.any():
        got, fix = f"no value in row {first_row + int(np.argmax(missing))}", "fill it in: 0 or 1"
        raise SourceFormatError(explain(subject, got=got, allowed="a flag in each row", fix=fix))
    set_flags: Array = flags != 0
    return set_flags
