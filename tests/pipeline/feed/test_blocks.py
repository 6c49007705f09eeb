from pathlib import Path

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_rl.pipeline.feed import blocks
from dask_rl.pipeline.feed.blocks import BlockPlan, BlockRecipe, open_recipe, plan_block, read_block
from dask_rl.pipeline.feed.config import Feed, FeedConfig
from dask_rl.pipeline.feed.layout import Column, plan_layout
from dask_rl.pipeline.feed.partition import EpisodeTable, Transitions
from dask_rl.pipeline.feed.sampling import Halo
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import DatasetError, InvalidDataError
from dask_rl.storage.writer import DatasetWriter


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> OfflineDataset:
    """Rows number themselves; images are bytes, and the action of a step is the last digit of its row."""
    path = tmp_path_factory.mktemp("blocks") / "data.zarr"
    rng = np.random.default_rng(0)
    image = gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)
    with DatasetWriter(
        path, observation_space=image, action_space=gymnasium.spaces.Discrete(10), shard_rows=64
    ) as writer:
        row = 0
        for number in range(60):
            length = int(rng.integers(1, 40))
            rows = np.arange(row, row + length + 1)
            writer.add_episode(
                Episode(
                    observations=np.repeat((rows % 251).astype(np.uint8), 4).reshape(-1, 2, 2),
                    actions=rows[:-1] % 10,
                    rewards=rows[:-1].astype(np.float64),
                    terminations=np.arange(length) == length - 1,
                    truncations=np.zeros(length, np.bool_),
                    infos={"behavior_logp": -rows[:-1].astype(np.float32)},
                    id=number,
                )
            )
            row += length + 1
    return OfflineDataset.open(path)


def feed_of(dataset: OfflineDataset, selected: np.ndarray, block_rows: int) -> Feed:
    table = EpisodeTable(
        dataset.episode_starts,
        dataset.episode_ends,
        dataset.has_final_observation,
        dataset.episode_terminations,
    )
    config = FeedConfig(str(dataset.path), ("rewards",), 2, 2, block_rows=block_rows, window_rows=block_rows)
    return Feed(config, Transitions.of(table, needs_next=True, selected=selected), len(selected))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_block_holds_its_transitions_and_the_rows_behind_them(dataset: OfflineDataset, data: st.DataObject) -> None:
    episodes = data.draw(st.sets(st.integers(0, 59), min_size=3))
    feed = feed_of(dataset, np.array(sorted(episodes)), data.draw(st.integers(1, 200)))
    columns = (Column("rewards", "float64", ()), Column("observations", "uint8", (2, 2)))
    with pytest.MonkeyPatch.context() as patch:
        # Small limits, so that runs are split, read together and read through scratch memory in every combination.
        patch.setattr(blocks, "MERGE_GAP_ROWS", data.draw(st.sampled_from([0, 3, 50])))
        patch.setattr(blocks, "READ_GAP_ROWS", data.draw(st.sampled_from([0, 10, 4096])))
        patch.setattr(blocks, "SCRATCH_BYTES", data.draw(st.sampled_from([64, 1024, 2**20])))
        for shard in range(2):
            positions = []
            order = feed.order(shard)
            for block in range(order.num_blocks):
                plan = plan_block(feed, shard, order.block_part(block), Halo(next=1))
                out = {column.name: np.zeros((plan.num_rows, *column.row_shape), column.dtype) for column in columns}
                read_block(dataset, columns, plan.without_pieces(), out)
                index = plan.local_index()
                rows = out["rewards"][index].astype(int)  # each row's reward is its own number
                assert np.array_equal(out["observations"][index + 1, 1, 1], (rows + 1) % 251)
                positions.append(rows)
            low, high = feed.shard_edges[shard], feed.shard_edges[shard + 1]
            assert np.array_equal(np.concatenate(positions), feed.transitions.rows(np.arange(low, high)))


@given(data=st.data())
def test_rows_inside_finds_the_marked_rows_of_a_block(dataset: OfflineDataset, data: st.DataObject) -> None:
    feed = feed_of(dataset, np.arange(0, 60, 5), data.draw(st.integers(1, 200)))
    plan = plan_block(feed, 1, feed.order(1).block_part(0), Halo(next=1))
    marked = np.array(sorted(data.draw(st.sets(st.integers(0, dataset.num_rows - 1), max_size=60))), np.int64)
    loaded = np.concatenate([np.arange(a, b) for a, b in zip(plan.run_starts, plan.run_stops, strict=True)])
    assert plan.rows_inside(marked).tolist() == np.flatnonzero(np.isin(loaded, marked)).tolist()


def test_only_what_is_asked_for_is_read_in_the_type_that_is_delivered(dataset: OfflineDataset) -> None:
    fields = ("observations", "next_observations", "actions", "infos/behavior_logp", "next_valid")
    layout = plan_layout(FeedConfig(str(dataset.path), fields, 8, dtype="float64"), dataset)
    assert {column.name: column.dtype for column in layout.columns} == {
        "observations": "uint8",
        "actions": "int64",
        "infos/behavior_logp": "float64",
        "next_valid": "bool",
    }
    assert [output.key for output in layout.outputs] == list(fields)
    assert layout.halo == Halo(next=1)
    assert plan_layout(FeedConfig(str(dataset.path), ("actions",), 8), dataset).halo == Halo()


def test_a_changed_dataset_is_refused(dataset: OfflineDataset) -> None:
    with pytest.raises(DatasetError, match=r"allowed: 0{12}.*; restore that dataset"):
        open_recipe(BlockRecipe(str(dataset.path), "0" * 64, ()))


def test_a_number_that_the_delivered_type_cannot_hold_is_named(tmp_path: Path) -> None:
    space, flags = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64), np.zeros(5, np.bool_)
    settings = {"observation_space": space, "action_space": gymnasium.spaces.Discrete(2)}
    with DatasetWriter(tmp_path / "d.zarr", **settings) as writer:
        writer.add_episode(Episode(np.full((6, 1), 1e300), np.zeros(5, int), np.zeros(5), flags, flags))
    large = OfflineDataset.open(tmp_path / "d.zarr")
    plan = BlockPlan(0, 0, *(np.array([edge]) for edge in (0, 5, 0, 6, 0, 5)))
    with pytest.raises(InvalidDataError, match=r"got a number as large as 1e\+300; allowed: what float32 can hold"):
        read_block(large, (Column("observations", "float32", (1,)),), plan, {"observations": np.empty((6, 1), "f4")})
