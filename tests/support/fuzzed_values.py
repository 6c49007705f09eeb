"""Imports sound files of all kinds whose values were changed at random; argv: a directory, seed, seconds, cases.

What is changed are types, shapes, single values, and which columns there are. Prints as fuzzed_files does.
"""

import base64
import json
import pickle
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lz4.frame
import msgpack
import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet as pq
from fuzzed_files import CASE_SECONDS, check_written, limit_resources

from dask_rl.storage.formats import import_arrays, import_dataset, import_frame

Columns = dict[str, Any]
NUM_STEPS = 12
ODD = (None, float("nan"), float("inf"), -1, 2**63, 1e300, "x", b"\xff", True, [], {}, 0.5)
DTYPES = ("f4", "f8", "i8", "u8", "i1", "?", "f2", "O", "U", "c8", "M8[ns]")
FLAGS = ("dones", "terminateds", "truncateds", "terminals", "timeouts", "masks", "terminations", "truncations")


class Unwritable(Exception):
    """A library does not write such values."""


def sound() -> Columns:
    """Two episodes of 6 steps with every column that a format below knows."""
    steps = np.arange(NUM_STEPS)
    observations = np.stack([steps, steps], axis=1).astype(np.float32)
    last = steps % 6 == 5
    flags = dict.fromkeys(FLAGS, last & (steps < 6))
    return {
        **{"obs": observations, "new_obs": observations + 1, "actions": steps % 2, "rewards": steps * 1.0},
        **{"eps_id": steps // 6, "t": steps % 6, "action_logp": steps * -0.5, "action_prob": np.full(NUM_STEPS, 0.5)},
        **{"agent_index": steps * 0, "observations": observations, "next_observations": observations + 1},
        **{"episode_ends": np.array([6, 12]), "infos": np.zeros(NUM_STEPS)},
        **flags,
    }


def other_type(column: Any, rng: random.Random) -> Any:
    return np.asarray(column).astype(rng.choice(DTYPES))


def other_shape(column: Any, rng: random.Random) -> Any:
    array = np.asarray(column)
    return rng.choice(
        [
            *(array[..., None], array[:-1], array[:0], array.reshape(-1), array.T, array[None]),
            *(array.reshape(-1)[0], np.stack([array, array], axis=-1), np.concatenate([array, array])),
        ]
    )


def other_value(column: Any, rng: random.Random) -> Any:
    values = np.asarray(column).tolist()
    where = values
    while rng.random() < 0.7 and isinstance(where[0], list) and where[0]:
        where = rng.choice(where)
    where[rng.randrange(len(where))] = rng.choice(ODD)
    return values


def constant(column: Any, rng: random.Random) -> Any:
    array = np.asarray(column)
    return np.full(array.shape, rng.choice([0, 1, -1, np.nan, 2**62]))


def shuffled(column: Any, rng: random.Random) -> Any:
    array = np.asarray(column)
    return array[rng.sample(range(len(array)), len(array))]


CHANGES = (other_type, other_shape, other_value, other_value, constant, shuffled)


def mutate(columns: Columns, rng: random.Random) -> str:
    """Change some columns in place; return what was done."""
    done = []
    for _ in range(rng.choice([1, 2, 2, 3, 4])):
        name, other = rng.choice(sorted(columns)), rng.choice(sorted(columns))
        what = rng.choice(["less", "copy", "value", *["change"] * 6])
        if what == "less":
            del columns[name]
        elif what == "copy":
            columns[name] = columns[other]
        elif what == "value":
            columns[name] = rng.choice(ODD)
        else:
            change = rng.choice(CHANGES)
            try:
                with np.errstate(all="ignore"):
                    columns[name] = change(columns[name], rng)
            except (ValueError, TypeError, LookupError, OverflowError):
                continue
            what = change.__name__
        done.append(f"{what} of {name}")
    return ", ".join(done)


def take(columns: Columns, *names: str, optional: tuple[str, ...] = (), rng: random.Random) -> Columns:
    """Return the columns of a format, and some that it may have."""
    wanted = {*names, *(name for name in optional if rng.random() < 0.5)}
    return {name: column for name, column in columns.items() if name in wanted}


def rllib(columns: Columns, rng: random.Random) -> Columns:
    optional = ("new_obs", "dones", "terminateds", "truncateds", "t", "action_logp", "action_prob", "agent_index")
    return take(columns, "obs", "actions", "rewards", "eps_id", optional=optional, rng=rng)


def plain(value: Any) -> Any:
    return np.asarray(value).tolist() if isinstance(value, np.ndarray | np.generic) else value


def packed(value: Any) -> str:
    return base64.b64encode(lz4.frame.compress(pickle.dumps(value, protocol=5))).decode()


def json_file(columns: Columns, changed: Columns, place: Path, rng: random.Random) -> Path:
    """A sound line and a changed one, or two changed ones."""
    line = rllib(changed, rng)
    names = rng.choice([line, line, line, rllib(columns, rng)])
    lines = [{name: c for name, c in rng.choice([columns, changed]).items() if name in names}, line]
    pack = rng.random() < 0.5
    texts = [
        json.dumps({name: packed(c) if pack and rng.random() < 0.5 else plain(c) for name, c in line.items()})
        for line in lines
    ]
    (place / "a.json").write_text("\n".join(texts))
    return place / "a.json"


def parquet_file(columns: Columns, changed: Columns, place: Path, rng: random.Random) -> Path:
    found = rllib(changed, rng)
    names = [*found, rng.choice(list(found))] if found and rng.random() < 0.1 else list(found)
    arrays = [pyarrow.array(plain(found[name])) for name in names]
    pq.write_table(pyarrow.Table.from_arrays(arrays, names=names), place / "a.parquet", row_group_size=5)
    return place / "a.parquet"


def item_file(columns: Columns, changed: Columns, place: Path, rng: random.Random) -> Path:
    def restored(value: Any) -> Any:
        array = np.asarray(value)
        form = {"nd": array.ndim > 0, "type": array.dtype.str, "shape": array.shape, "data": array.tobytes()}
        return rng.choice([form, form, {**form, rng.choice(list(form)): rng.choice([*ODD, "(1,,2)i4", 5])}])

    if np.ndim(changed.get("observations")):  # and the final one
        changed["observations"] = np.concatenate([changed["observations"], changed["observations"][-1:]])
    fields = {"observations": "observations", "actions": "actions", "rewards": "rewards"}
    state: Columns = {
        field: {"data": restored(changed[name]) if rng.random() < 0.5 else plain(changed[name]), "lookback": 0}
        for field, name in fields.items()
        if name in changed
    }
    state |= {"is_terminated": True, "is_truncated": False}
    state["extra_model_outputs"] = {"action_logp": {"data": plain(changed.get("action_logp", []))}}
    if rng.random() < 0.3:
        at = rng.choice([state, *(part for part in state.values() if isinstance(part, dict))])
        at[rng.choice(list(at))] = rng.choice(ODD)
    pq.write_table(pyarrow.table({"item": [msgpack.packb(state)] * 2}), place / "a.parquet")
    return place / "a.parquet"


def hdf5_file(columns: Columns, changed: Columns, place: Path, rng: random.Random) -> Path:
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    with h5py.File(place / "a.hdf5", "w") as file:
        for name, column in take(changed, *names, optional=("next_observations",), rng=rng).items():
            file[name] = column
    return place / "a.hdf5"


def npz_file(columns: Columns, changed: Columns, place: Path, rng: random.Random) -> Path:
    np.savez(place / "a.npz", **take(changed, "observations", "actions", "terminals", optional=("masks",), rng=rng))
    return place / "a.npz"


WRITERS = (json_file, json_file, parquet_file, item_file, hdf5_file, npz_file)


def frame_call(changed: Columns, place: Path, rng: random.Random) -> Callable[[], Any]:
    flags = take(changed, "terminations", optional=("truncations",), rng=rng)
    options: dict[str, Any] = {name: name for name in flags}
    options |= {"episode": "eps_id"} if rng.random() < 0.7 else {}
    options |= {"step": "t"} if rng.random() < 0.3 else {}
    options |= {"next_observations": "next_observations"} if rng.random() < 0.3 else {}
    options |= {"infos": ["infos"]} if rng.random() < 0.3 else {}
    columns = {
        name: list(column) if np.ndim(column) > 1 else column
        for name, column in changed.items()
        if name in ("observations", "actions", "rewards", "eps_id", "t", "next_observations", "infos", *flags)
    }
    frame: Any = pd.DataFrame(columns)
    if rng.random() < 0.5:
        frame = pyarrow.Table.from_pandas(frame)
    return lambda: import_frame(place / "out.zarr", frame, **options)


def arrays_call(changed: Columns, place: Path, rng: random.Random) -> Callable[[], Any]:
    optional = ("rewards", "truncations", "next_observations", "episode_ends")
    columns = take(changed, "observations", "actions", "terminations", optional=optional, rng=rng)
    columns = {name: column for name, column in columns.items() if not isinstance(column, dict)}
    columns |= {"infos": {"x": changed["infos"]}} if "infos" in changed else {}
    missing = {"observations", "actions"} - columns.keys()
    return lambda: import_arrays(place / "out.zarr", **columns, **dict.fromkeys(missing, np.zeros(0)))


def make_call(changed: Columns, place: Path, rng: random.Random) -> tuple[str, Callable[[], Any], Path | None]:
    """Return the format, what imports it, and the source."""
    make = rng.choice([*WRITERS, frame_call, arrays_call])
    try:
        if make in (frame_call, arrays_call):
            return make.__name__, make(changed, place, rng), None  # type: ignore[call-arg]
        source = make(sound(), changed, place, rng)  # type: ignore[call-arg, arg-type]
    except (ValueError, TypeError, KeyError, OverflowError, pyarrow.ArrowException, AttributeError) as error:
        raise Unwritable from error
    return make.__name__, lambda: import_dataset(source, place / "out.zarr"), source


def run(place: Path, seed: int, seconds: float, cases: int) -> None:
    """Run cases until the time is over, or so many."""
    limit_resources()
    ends: Counter[str] = Counter()
    began = time.monotonic()
    for number in range(cases):
        if time.monotonic() - began > seconds:
            break
        rng = random.Random(f"values {seed} {number}")
        case = place / "case"
        case.mkdir()
        changed = sound()
        done = mutate(changed, rng)
        (place / "now").write_text(f"values, seed {seed}, case {number}: {done}")
        signal.alarm(CASE_SECONDS)
        try:
            kind, call, source = make_call(changed, case, rng)
            (place / "now").write_text(f"values, seed {seed}, case {number}: {done} in {kind}")
            ends[check_written(call, case, source)] += 1
        except Unwritable:
            ends["unwritable"] += 1
        finally:
            signal.alarm(0)
        shutil.rmtree(case)
    print(json.dumps(ends))


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
