"""npz files of three styles: OGBench, imitation, stable-baselines. Told apart by their names of arrays."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from dask_rl.storage.errors import SourceFormatError, explain
from dask_rl.storage.schema import INFO_NAME

from .base import ImportOptions, Source
from .flat import Cuts, Lookup, Roles, Rows, check_columns, cut_after, make_flat_source, read_flags
from .npz_file import NPZ_SUFFIX, NpzArray, NpzFile, open_npz

_STYLES = {
    "imitation": ("obs", "acts", "indices"),
    "stable-baselines": ("obs", "actions", "episode_starts"),
    "OGBench": ("observations", "actions", "terminals"),
}


class NpzImporter:
    """Reads one npz file."""

    name = "npz"

    def detect(self, path: Path) -> bool:
        """Whether this is an npz file with the arrays of one of the styles."""
        if not (path.is_file() and path.suffix.lower() == NPZ_SUFFIX):
            return False
        with open_npz(path) as file:
            return _style(file) is not None

    def read(self, path: Path, options: ImportOptions) -> Source:
        """Open a file of any of the styles; see `Importer`."""
        with open_npz(path) as file:
            style = _style(file)
            if style is None:
                allowed = "; ".join(f"{name}: {', '.join(wanted)}" for name, wanted in _STYLES.items())
                raise SourceFormatError(
                    explain(str(path), got=f"arrays {', '.join(file.arrays)}", allowed=allowed, fix="rename the arrays")
                )
            layout = {"imitation": _imitation, "stable-baselines": _stable_baselines, "OGBench": _ogbench}[style]
            found = layout(str(path), file.arrays)
            left_out = [name for name in file.arrays if name not in found.used] + file.others
        notes = list(found.notes)
        validation = path.with_name(f"{path.stem}-val{NPZ_SUFFIX}")
        if validation.exists():
            notes.append(f"the validation episodes in {validation.name} are a dataset of their own")
        return make_flat_source(
            f"{style}: {found.rule}",
            str(path),
            partial(_open_columns, path),
            found.roles,
            found.cuts,
            left_out=tuple(sorted(left_out)),
            notes=tuple(notes),
        )


def _style(file: NpzFile) -> str | None:
    return next((name for name, wanted in _STYLES.items() if set(wanted) <= file.arrays.keys()), None)


@contextmanager
def _open_columns(path: Path) -> Iterator[Lookup]:
    with open_npz(path) as file:
        yield file.__getitem__


@dataclass(frozen=True)
class _Layout:
    """What a style makes of a file."""

    rule: str
    roles: Roles
    cuts: Cuts
    used: frozenset[str]
    notes: tuple[str, ...] = ()


def _ogbench(origin: str, arrays: Mapping[str, NpzArray]) -> _Layout:
    """T+1 rows a trajectory: in its last row, which `terminals` marks, only the observation counts."""
    names = ["observations", "actions", "terminals", *(name for name in ("rewards", "masks") if name in arrays)]
    num_rows = check_columns(origin, {name: arrays[name] for name in names})
    last = read_flags(arrays["terminals"], f"{origin}: terminals")
    last[-1] = True
    stops_here = np.zeros(num_rows, dtype=bool)
    if "masks" in arrays:
        stops_here = ~read_flags(arrays["masks"], f"{origin}: masks") & ~last
    ends = stops_here | (np.append(last[1:], False) & ~last)
    after_end = np.append(True, (ends | last)[:-1])
    starts, stops = np.flatnonzero(after_end & ~last), np.flatnonzero(ends) + 1
    single = int((after_end & last & ~np.append(False, ends[:-1])).sum())
    infos = _infos(arrays, names, num_rows)
    rule = "trajectories end where terminals is set, in a row that holds the final observation; "
    if "masks" in arrays:
        rule += "terminated where masks is 0, after which an episode of its own begins, truncated otherwise"
    else:
        rule += "without masks all are truncated"
    return _Layout(
        rule,
        Roles(
            {"observations": "observations"},
            {"actions": "actions"},
            "rewards" if "rewards" in arrays else None,
            infos=infos,
            final_rows=True,
        ),
        Cuts(starts, stops, stops_here[stops - 1]),
        frozenset([*names, *infos.values()]),
        (f"{single} trajectories of one row, without a step, were left out",) if single else (),
    )


def _imitation(origin: str, arrays: Mapping[str, NpzArray]) -> _Layout:
    """T+1 observations an episode, in rows of their own; `indices` cuts the actions."""
    names = ["acts", *(["rews"] if "rews" in arrays else [])]
    num_steps = check_columns(origin, {name: arrays[name] for name in names})
    indices = _listed(origin, arrays, "indices")
    if indices.dtype.kind not in "iu" and indices.shape[0]:
        got, allowed = f"values of type {indices.dtype}", "whole numbers"
        raise SourceFormatError(explain(f"{origin}: indices", got=got, allowed=allowed, fix="fetch the file again"))
    cuts = np.asarray(indices[:]).reshape(-1).astype(np.int64)
    starts, stops = np.append(0, cuts), np.append(cuts, num_steps)
    num_episodes = len(starts)
    num_observations = arrays["obs"].shape[0] if arrays["obs"].shape else 0
    if (starts > stops).any() or num_observations != num_steps + num_episodes:
        got = f"{num_steps} actions in {num_episodes} episodes and {num_observations} observations"
        allowed = "growing indices, one observation more than actions an episode"
        raise SourceFormatError(explain(origin, got=got, allowed=allowed, fix="fetch the file again"))
    terminated = np.zeros(num_episodes, dtype=bool)
    rule = "episodes split at indices; "
    if "terminal" in arrays:
        terminated = read_flags(_listed(origin, arrays, "terminal"), f"{origin}: terminal")
        check_columns(f"{origin}: terminal", {"terminal": terminated, "episodes": starts})
        rule += "terminated where terminal is set, truncated otherwise"
    else:
        rule += "without an array terminal all are truncated"
    found = Cuts(starts, stops, terminated, starts + np.arange(num_episodes))
    empty = int((starts == stops).sum())
    return _Layout(
        rule,
        Roles({"observations": "obs"}, {"actions": "acts"}, "rews" if "rews" in arrays else None, final_rows=True),
        found.select(starts < stops),
        frozenset([*names, "obs", "indices", "terminal"]),
        (f"{empty} episodes without a step were left out",) if empty else (),
    )


def _stable_baselines(origin: str, arrays: Mapping[str, NpzArray]) -> _Layout:
    """One row a step; `episode_starts` marks the first ones."""
    names = ["obs", "actions", "episode_starts", *(["rewards"] if "rewards" in arrays else [])]
    num_rows = check_columns(origin, {name: arrays[name] for name in names})
    first = read_flags(arrays["episode_starts"], f"{origin}: episode_starts")
    first[0] = True
    starts, stops = cut_after(np.append(first[1:], True))
    terminated = np.ones(len(stops), dtype=bool)
    num_returns = _listed(origin, arrays, "episode_returns").shape[0] if "episode_returns" in arrays else None
    terminated[-1] = num_returns is None or num_returns >= len(stops)  # fewer: it was cut off, and has no return
    infos = _infos(arrays, [*names, "episode_returns"], num_rows)
    return _Layout(
        "episodes split at episode_starts; an end is taken as a termination, as the source does not tell it from a "
        "time limit, but the last one as a truncation if episode_returns does not count it",
        Roles({"observations": "obs"}, {"actions": "actions"}, "rewards" if "rewards" in arrays else None, infos=infos),
        Cuts(starts, stops, terminated),
        frozenset([*names, "episode_returns", *infos.values()]),
    )


def _listed(origin: str, arrays: Mapping[str, NpzArray], name: str) -> NpzArray:
    """Return an array with an axis.

    Raises:
        SourceFormatError: it is a single number.
    """
    if not arrays[name].shape:
        got, allowed = "a single number", "one for each episode"
        raise SourceFormatError(explain(f"{origin}: {name}", got=got, allowed=allowed, fix="save it as an array"))
    return arrays[name]


def _infos(arrays: Mapping[str, Rows], used: list[str], num_rows: int) -> dict[str, str]:
    """Return the other arrays with a value a row, under names that a dataset can have."""
    return {
        name: name
        for name, array in arrays.items()
        if name not in used and array.shape and array.shape[0] == num_rows and INFO_NAME.fullmatch(name)
        if 0 not in array.shape
    }
