"""Schema 1: the names, the types and the attributes of a dataset on disk."""

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

SCHEMA_VERSION = 1
ROW_CONVENTION = "T+1"
ATTRIBUTES_KEY = "dask_rl"
COMMIT_NAME = "commit.json"
METADATA_NAME = "zarr.json"

OBSERVATIONS = "observations"
ACTIONS = "actions"
REWARDS = "rewards"
TERMINATIONS = "terminations"
TRUNCATIONS = "truncations"
INFOS_PREFIX = "infos/"
CORE_FIELDS = (OBSERVATIONS, ACTIONS, REWARDS, TERMINATIONS, TRUNCATIONS)

EPISODE_ENDS = "meta/episode_ends"
EPISODE_ID = "meta/episode_id"
EPISODE_SEED = "meta/episode_seed"  # -1: unknown
EPISODE_HAS_FINAL_OBSERVATION = "meta/episode_has_final_observation"
META_DTYPES = {
    EPISODE_ENDS: np.dtype("<i8"),
    EPISODE_ID: np.dtype("<i8"),
    EPISODE_SEED: np.dtype("<i8"),
    EPISODE_HAS_FINAL_OBSERVATION: np.dtype("bool"),
}

ALLOWED_DTYPES = frozenset(
    f"{kind}{bits}"
    for kind, widths in {"float": (16, 32, 64), "int": (8, 16, 32, 64), "uint": (8, 16, 32, 64)}.items()
    for bits in widths
) | {"bool"}
ALLOWED_CODECS = frozenset({"sharding_indexed", "bytes", "zstd", "crc32c"})

INFO_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def is_ours(metadata: bytes) -> bool:
    """Whether a file METADATA_NAME is that of a dataset, complete or not."""
    try:
        return ATTRIBUTES_KEY in json.loads(metadata)["attributes"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


@dataclass(frozen=True)
class ArraySpec:
    """One array on the time axis: its name, and the type and shape of one row."""

    path: str
    """The field, such as `observations` or `infos/behavior_logp`."""
    dtype: np.dtype[Any]
    """Little-endian; its name is one of ALLOWED_DTYPES."""
    row_shape: tuple[int, ...]
    """The shape of one row; () for scalars."""

    @property
    def key(self) -> str:
        """Where the array lies in the group, such as `data/observations`."""
        return f"data/{self.path}"

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, uncompressed."""
        return self.dtype.itemsize * math.prod(self.row_shape)

    @property
    def dimension_names(self) -> tuple[str, ...]:
        """Names of the axes, for xarray; the row axis is shared, the others belong to the field."""
        return ("row", *(f"{self.path}_{axis}" for axis in range(len(self.row_shape))))


class DatasetAttributes(BaseModel):
    """What the root group says about the dataset, under the attribute `dask_rl`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, populate_by_name=True)

    schema_version: Literal[1] = Field(default=1, alias="schema")
    """Version of this layout."""
    row_convention: Literal["T+1"] = "T+1"
    """Each episode of T steps occupies T+1 rows; the last holds the final observation only."""
    observation_space: dict[str, JsonValue]
    """Gymnasium space as JSON, in Minari's form."""
    action_space: dict[str, JsonValue]
    """Gymnasium space as JSON, in Minari's form."""
    environment: str | None = None
    """Gymnasium id of the environment that the data came from."""
    ref_min_score: float | None = Field(default=None, allow_inf_nan=False)
    """Return of a random policy, for normalised scores."""
    ref_max_score: float | None = Field(default=None, allow_inf_nan=False)
    """Return of an expert, for normalised scores."""
    provenance: dict[str, JsonValue] = Field(default_factory=dict)
    """Where the data came from; no part of the dataset's identity."""
    num_steps: int = Field(ge=1)
    """Transitions, final rows not counted."""
    num_episodes: int = Field(ge=1)
    """Episodes, each of at least one step."""

    @property
    def num_rows(self) -> int:
        """Length of the time axis: one row per step, and one per episode for its final observation."""
        return self.num_steps + self.num_episodes


def is_part_of(path: str, name: str) -> bool:
    """Tell whether a field is `name` itself or, of a nested space, a part of it."""
    return path == name or path.startswith(f"{name}/")


def first_problem(error: ValidationError) -> str:
    """Return the first of pydantic's findings on one line."""
    detail = error.errors()[0]
    return f"{'.'.join(str(part) for part in detail['loc'])}: {detail['msg']}"


def fill_value(dtype: np.dtype[Any]) -> Any:
    """Return what stands in rows that no episode owns: NaN for floats, so that it cannot pass for data."""
    return {"f": math.nan, "b": False}.get(dtype.kind, 0)


def little_endian(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the dtype in the byte order of the files."""
    return np.dtype(dtype).newbyteorder("<")
