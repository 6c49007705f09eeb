"""D4RL's HDF5 files: flat arrays with `terminals`, and usually `timeouts`."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.schema import INFO_NAME

from .base import Array, ImportOptions, Source, environment_limit
from .flat import Cuts, Roles, Rows, check_columns, cut_after, make_flat_source, read_flags
from .hdf5 import is_hdf5_name, open_hdf5, open_hdf5_columns, read_dataset

_KEYS = ("observations", "actions", "rewards", "terminals")
_LOG_PROBS = "infos/action_log_probs"
_NEXT = "next_observations"
# (file name, returns of a random policy and of an expert) as D4RL publishes them
_REF_SCORES = (
    (r"half_?cheetah", (-280.18, 12135.0)),
    (r"hopper", (-20.27, 3234.3)),
    (r"walker2d", (1.63, 4592.3)),
    (r"ant_?maze", (0.0, 1.0)),
    (r"ant", (-325.6, 3879.7)),
)
_MIN_TIMEOUTS = 10  # fewer prove nothing
_MAX_SAMPLES = 1000
_SAMPLE_ROWS = 2**14


class D4rlImporter:
    """Reads D4RL's files, with or without `timeouts` and `next_observations`."""

    name = "d4rl"

    def detect(self, path: Path) -> bool:
        """Whether this is an HDF5 file with D4RL's keys."""
        if not (path.is_file() and is_hdf5_name(path)):
            return False
        with open_hdf5(path) as file:
            return all(key in file for key in _KEYS) and "episode_terminals" not in file

    def read(self, path: Path, options: ImportOptions) -> Source:
        """Open a file; see `Importer`.

        Raises:
            ConfigError: nothing tells where episodes end.
        """
        with open_hdf5(path) as file:
            optional = [key for key in ("timeouts", _NEXT) if key in file]
            columns = {key: read_dataset(file, key, str(path)) for key in (*_KEYS, *optional)}
            num_rows = check_columns(str(path), columns)
            infos, left_out = _infos(file, str(path), num_rows)
            cuts, rule = _cuts(columns, path, options)
            notes = _doubts(columns, cuts) if "timeouts" in columns else ()
        observations = {"observations": "observations"}
        return make_flat_source(
            rule,
            str(path),
            partial(open_hdf5_columns, path),
            Roles(
                observations,
                {"actions": "actions"},
                next_observations={"observations": _NEXT} if _NEXT in columns else {},
                infos=infos,
            ),
            cuts,
            ref_scores=_ref_scores(path),
            left_out=left_out,
            notes=notes,
        )


def _cuts(columns: Mapping[str, Rows], path: Path, options: ImportOptions) -> tuple[Cuts, str]:
    """Return the episodes, and by which rule they were found."""
    terminals = read_flags(columns["terminals"], f"{path}: terminals")
    if "timeouts" in columns:
        starts, stops = cut_after(terminals | read_flags(columns["timeouts"], f"{path}: timeouts"))
        rule = "episodes split at terminals and timeouts"
    else:
        limit = options.max_episode_steps or environment_limit(options.environment)
        if limit is not None:
            starts, stops = _cut_long(*cut_after(terminals), limit)
            rule = f"episodes split at terminals and, as there are no timeouts, after {limit} steps"
        elif _NEXT in columns:
            starts, stops = cut_after(terminals | _breaks(columns))
            rule = "episodes split at terminals and, as there are no timeouts, where next_observations break off"
        else:
            raise ConfigError(
                explain(
                    str(path),
                    got="no timeouts, which say where the time limit cut episodes off",
                    allowed="timeouts, next_observations, or the time limit of the environment",
                    fix="name it: max_episode_steps (--max-episode-steps), 1000 for the MuJoCo tasks",
                )
            )
    rule += "; terminated where terminals is set on the last row, truncated otherwise; rows after the last end are a "
    rule += "truncated episode"
    return Cuts(starts, stops, terminals[stops - 1]), rule


def _cut_long(starts: Array, stops: Array, limit: int) -> tuple[Array, Array]:
    """Cut pieces longer than `limit` after every `limit` rows."""
    cut = np.concatenate([np.arange(start, stop, limit) for start, stop in zip(starts, stops, strict=True)])
    return cut, np.append(cut[1:], stops[-1])


def _breaks(columns: Mapping[str, Rows]) -> Array:
    """Return the rows whose next observation is not the observation of the following row, (rows,) bool."""
    num_rows = columns["observations"].shape[0]
    breaks = np.zeros(num_rows, dtype=bool)
    for first in range(0, num_rows - 1, _SAMPLE_ROWS):
        stop = min(first + _SAMPLE_ROWS, num_rows - 1)
        following = np.asarray(columns["observations"][first + 1 : stop + 1]).reshape(stop - first, -1)
        after = np.asarray(columns[_NEXT][first:stop]).reshape(stop - first, -1)
        breaks[first:stop] = ~((following == after) | (np.isnan(following) & np.isnan(after))).all(axis=1)
    return breaks


@np.errstate(over="ignore", invalid="ignore")  # absurd values: their checks report them
def _doubts(columns: Mapping[str, Rows], cuts: Cuts) -> tuple[str, ...]:
    """Say if observations go on at most of the time-outs: these do not lie where episodes end.

    So it is in antmaze-v0, whose timeouts are out of step, and in maze2d, where they mark goals.
    """
    ends = cuts.stops[~cuts.terminated & (cuts.stops < columns["observations"].shape[0])]
    sample = np.asarray(columns["observations"][:_SAMPLE_ROWS], np.float64)
    usual = np.linalg.norm(np.diff(sample, axis=0).reshape(len(sample) - 1, -1), axis=1)
    inside = np.setdiff1d(np.arange(len(usual)), cuts.stops - 1)
    if len(ends) < _MIN_TIMEOUTS or not len(inside):
        return ()
    bound = np.quantile(usual[inside], 0.99)
    ends = ends[:: max(1, len(ends) // _MAX_SAMPLES)]
    pairs = (np.asarray(columns["observations"][int(end) - 1 : int(end) + 1], np.float64) for end in ends)
    steady = sum(bool(np.linalg.norm(pair[1] - pair[0]) <= bound) for pair in pairs)
    if 2 * steady <= len(ends):
        return ()
    return (
        f"at {steady} of {len(ends)} timeouts that were looked at the observations go on as inside an episode: they "
        "are out of step in antmaze-v0 and mark goals in maze2d; take the corrected version (-v1, -v2) if there is one",
    )


def _infos(file: Any, origin: str, num_rows: int) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return {name: column} of the infos with a number or more a row, and what is left out."""
    infos: dict[str, str] = {}
    left_out: list[str] = sorted(set(file) - {*_KEYS, "timeouts", _NEXT, "infos"})

    def visit(path: str, item: Any) -> None:
        if not hasattr(item, "dtype"):
            return
        column, name = f"infos/{path}", path.replace("/", ".")
        name = "behavior_logp" if column == _LOG_PROBS else name
        shape = tuple(item.shape or ())
        usable = shape[:1] == (num_rows,) and 0 not in shape and item.dtype.kind in "biuf"
        if usable and INFO_NAME.fullmatch(name):
            read_dataset(file, column, origin)  # refuses a link to another file
            infos[name] = column
        else:
            left_out.append(column)

    if hasattr(file.get("infos"), "visititems"):
        file["infos"].visititems(visit)
    elif "infos" in file:
        left_out.append("infos")
    return infos, tuple(sorted(left_out))


def _ref_scores(path: Path) -> tuple[float, float] | None:
    return next((scores for name, scores in _REF_SCORES if re.match(name, path.name, re.IGNORECASE)), None)
