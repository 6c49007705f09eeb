"""RLlib's rows that are odd: flags and ids that are missing, columns of other shapes, gaps, files that differ."""

import copy
import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import SourceFormatError
from dask_rl.storage.formats import ImportOptions, ImportSummary, import_dataset
from dask_rl.storage.formats.rllib_parquet import ParquetTable

pytestmark = pytest.mark.data

NAN = float("nan")
LAST = [False] * 9 + [True]


def batch(**changes: Any) -> dict[str, Any]:
    """One episode of 10 steps; None takes a column away."""
    observations = np.arange(20.0).reshape(10, 2)
    columns = {
        **{"obs": observations.tolist(), "new_obs": (observations + 2).tolist(), "actions": [0, 1] * 5},
        **{"rewards": [1.0] * 10, "dones": LAST, "eps_id": [1] * 10},
    }
    return {name: column for name, column in {**columns, **changes}.items() if column is not None}


def write_lines(path: Path, *batches: dict[str, Any]) -> Path:
    path.write_text("\n".join(json.dumps(columns) for columns in batches))
    return path


def write_files(folder: Path, *batches: dict[str, Any]) -> Path:
    folder.mkdir()
    for number, columns in enumerate(batches):
        pq.write_table(pyarrow.table(columns), folder / f"{number}.parquet")
    return folder


def imported(source: Path, **options: Any) -> ImportSummary:
    return import_dataset(source, source.parent / "out.zarr", options=ImportOptions(**options), overwrite=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dones": [0.0] * 4 + [NAN] + [0.0] * 5}, r"line 1, column 'dones': got no value in row 4"),
        ({"dones": [[0, 1]] * 10}, r"column 'dones': got values of type int64 and shape \(10, 2\)"),
        ({"eps_id": [1.0] * 5 + [NAN] * 5}, r"column 'eps_id': got no value in row 5; allowed: an id in each row"),
        ({"agent_index": [0.0] * 9 + [NAN]}, r"column 'agent_index': got no value in row 9"),
        ({"t": [0.0] * 9 + [NAN]}, r"column 't': got no number in row 9; allowed: the number of the step"),
        ({"t": [[0, 1]] * 10}, r"column 't': got a column of shape \(10, 2\); allowed: 10 numbers"),
        ({"action_logp": [[0.0, 1.0]] * 10}, r"column 'action_logp': got a column of shape \(10, 2\)"),
        (
            {"new_obs": [[1.0, 2.0, 3.0]] * 10},
            r"column 'new_obs': got shape \(10, 3\); allowed: that of obs, \(10, 2\)",
        ),
        ({"new_obs": None, "dones": []}, r"got columns of .*'dones': 0.* rows; allowed: one length"),
        ({"obs": "BCJNGé"}, "column 'obs': got a damaged packed column"),
        ({"new_obs": None, "actions": [2**63] * 10}, r"actions: got integers up to 9.22e\+18"),
        ({"new_obs": None, "obs": [2**64 - 1] * 10}, r"observations: got integers up to 1.84e\+19"),
    ],
)
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_columns_that_say_nothing_sure_are_refused(
    changes: dict[str, Any], message: str, kind: str, tmp_path: Path
) -> None:
    if kind == "json":
        source = write_lines(tmp_path / "a.json", batch(**changes))
    elif "packed" in message or "integers" in message or "length" in message:
        pytest.skip("JSON only")
    else:
        source, message = write_files(tmp_path / "a", batch(**changes)), message.replace("line 1, ", "")
    with pytest.raises(SourceFormatError, match=message):
        imported(source)


@pytest.mark.parametrize("name", ["dones", "t", "new_obs", "agent_index"])
def test_parts_that_lack_what_decides_about_episodes_are_named(name: str, tmp_path: Path) -> None:
    columns = batch(eps_id=[2] * 10, t=list(range(10)), agent_index=[0] * 10)
    lacking = {key: value for key, value in columns.items() if key != name}
    for parts, at in (((columns, lacking), 1), ((lacking, columns), 0)):
        with pytest.raises(SourceFormatError, match=rf"a\.json, line {at + 1}: got no column {name}"):
            imported(write_lines(tmp_path / "a.json", *parts))
        with pytest.raises(SourceFormatError, match=rf"{at}\.parquet: got no column {name}"):
            imported(write_files(tmp_path / f"parts-{at}", *parts))


def test_files_with_other_flags_are_refused(tmp_path: Path) -> None:
    other = batch(eps_id=[2] * 10, dones=None, terminateds=LAST, truncateds=[False] * 10)
    with pytest.raises(SourceFormatError, match=r"line 2: got no column dones"):
        imported(write_lines(tmp_path / "a.json", batch(), other))


def test_a_done_that_is_truncated_is_no_termination(tmp_path: Path) -> None:
    summary = imported(
        write_lines(tmp_path / "a.json", batch(truncateds=LAST), batch(eps_id=[2] * 10, truncateds=[0] * 10))
    )
    assert (summary.num_terminated, summary.num_truncated) == (1, 1)
    assert "unless they are truncateds" in summary.rule
    with OfflineDataset.open(tmp_path / "out.zarr") as dataset:
        assert [(e.terminated, e.truncated) for e in dataset.episodes()] == [(False, True), (True, False)]


@pytest.mark.parametrize("by", ["t", "new_obs"])
def test_gaps_are_told(by: str, tmp_path: Path) -> None:
    columns = batch(t=[0, 1, 2, 3, 4, 6, 7, 8, 9, 10])
    if by == "new_obs":
        del columns["t"]
        columns["new_obs"][4] = [0.5, 0.5]
    summary = imported(write_lines(tmp_path / "a.json", columns))
    assert (summary.num_episodes, summary.num_terminated) == (2, 1)
    assert summary.notes[0].startswith("1 episodes end where rows of their id do not follow each other")
    assert imported(write_lines(tmp_path / "a.json", batch())).notes == ()


def test_the_limit_of_the_environment_is_told(tmp_path: Path) -> None:
    columns = {"eps_id": [1] * 500, "obs": np.zeros((500, 4)).tolist(), "actions": [0] * 500}
    columns |= {"rewards": [1.0] * 500, "dones": [False] * 499 + [True]}
    source = write_lines(tmp_path / "a.json", columns)
    summary = imported(source, environment="CartPole-v1")
    assert "1 episodes are terminated after exactly 500 steps, the time limit of CartPole-v1" in summary.notes[0]
    assert imported(source).notes == ()
    assert imported(source, environment="CartPole-v1", max_episode_steps=500).notes == ()


def test_doubled_columns_are_refused(tmp_path: Path) -> None:
    columns = batch()
    arrays = [pyarrow.array(column) for column in (*columns.values(), columns["obs"])]
    pq.write_table(pyarrow.Table.from_arrays(arrays, names=[*columns, "obs"]), tmp_path / "a.parquet")
    with pytest.raises(SourceFormatError, match=r"a\.parquet: got several columns obs"):
        imported(tmp_path / "a.parquet")


def test_packed_episodes_and_rows_are_not_mixed(tmp_path: Path) -> None:
    for order in (("item", "eps_id"), ("eps_id", "item")):
        source = write_files(tmp_path / order[0], {"item": [b"x"]} if order[0] == "item" else batch())
        pq.write_table(pyarrow.table(batch() if order[0] == "item" else {"item": [b"x"]}), source / "1.parquet")
        with pytest.raises(SourceFormatError, match=r"(1\.parquet: got no column|item 0: got a packed episode)"):
            imported(source)


def test_large_row_groups_are_read_in_pieces(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    times = rng.permutation(np.tile(np.arange(50), 4).reshape(4, 50), axis=1).reshape(-1)
    columns = {"eps_id": np.repeat(np.arange(4), 50), "t": times, "obs": times * 1.0, "actions": times % 3}
    columns |= {"rewards": times * 1.0, "new_obs": times + 1.0}
    shuffled = rng.permutation(200)
    shuffled_table = pyarrow.table({name: column[shuffled] for name, column in columns.items()})
    pq.write_table(shuffled_table, tmp_path / "a.parquet", row_group_size=120)
    whole = imported(tmp_path / "a.parquet")
    with mock.patch("dask_rl.storage.formats.rllib_parquet._PART_BYTES", 500):
        table = ParquetTable([tmp_path / "a.parquet"])
        assert table.num_parts > 8
        for part in (1, 2, 0, 5):  # after each other, and not
            wanted = pq.read_table(tmp_path / "a.parquet").column("t").to_numpy()
            first = sum(len(table.read(before, ["t"])["t"]) for before in range(part))
            found = copy.deepcopy(table).read(part, ["t"])["t"]  # as it is pickled
            np.testing.assert_array_equal(found, wanted[first : first + len(found)])
            np.testing.assert_array_equal(table.read(part, ["t"])["t"], found)
        assert imported(tmp_path / "a.parquet").content_hash == whole.content_hash
    with OfflineDataset.open(tmp_path / "out.zarr") as dataset:
        assert all(e.rewards.tolist() == list(range(50)) for e in dataset.episodes())


def test_an_id_of_more_rows_than_fit_in_memory_is_refused(tmp_path: Path) -> None:
    limited = mock.patch("dask_rl.storage.formats.row_table._MAX_EPISODE_BYTES", 100)
    with limited, pytest.raises(SourceFormatError, match="got 10 rows of 41 bytes with one eps_id"):
        imported(write_lines(tmp_path / "a.json", batch()))
