"""Runs with several modules: each learns as if it were alone."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from dask_rl.learners.metrics import Result
from dask_rl.pipeline.runs.job import TrainJob, parse_job
from dask_rl.pipeline.runs.learning_curve import curve_row, losses_of
from dask_rl.pipeline.runs.run_directory import RunDirectory, dataset_facts
from dask_rl.pipeline.runs.train import train
from dask_rl.pipeline.runs.trained_policy import load_policy
from dask_rl.pipeline.runs.training_data import open_training_data
from dask_rl.storage.checkpoints.store import CheckpointStore, load_checkpoint, save_checkpoint
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, DatasetError
from dask_rl.storage.writer import DatasetWriter

WALK = {"name": "bc", "hidden_sizes": [8], "normalize_observations": True}
RUN = {"name": "iql", "hidden_sizes": [8], "dropout": 0.2, "top_fraction": 0.5, "discount": 0.9}


@pytest.fixture
def make_job(feed_dataset, other_dataset, tmp_path):
    """Build a job that trains `walk` and `run`, or one of them alone."""

    def make(*module_ids: str, **settings) -> TrainJob:
        paths, algorithms = {"walk": str(feed_dataset), "run": str(other_dataset)}, {"walk": WALK, "run": RUN}
        ids = module_ids or ("walk", "run")
        job = {
            "dataset": {module_id: paths[module_id] for module_id in ids},
            "algorithm": algorithms[ids[0]],
            "modules": {module_id: algorithms[module_id] for module_id in ids[1:]},
            "num_steps": 30,
            "batch_size": 32,
            "run": str(tmp_path / "-".join(ids)),
            **settings,
        }
        return parse_job(yaml.safe_dump(job))

    return make


def weights(run: Path | str) -> dict[str, dict[str, np.ndarray]]:
    path = CheckpointStore(Path(run) / "checkpoints").latest()
    return load_checkpoint(path, component="learner/rl_module")[0]


def assert_same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert got.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name)


def forget_all_but_the_first_checkpoint(run: Path) -> None:
    for path in [run / "result.json", *sorted((run / "checkpoints").glob("step-*"))[1:]]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_each_module_learns_what_it_would_learn_alone_and_reports_it_under_its_name(make_job):
    together = train(make_job())
    assert weights(together.run).keys() == {"walk", "run"}
    for module_id in ("walk", "run"):
        alone = train(make_job(module_id))
        assert_same(weights(together.run)[module_id], weights(alone.run)[module_id])
        own = {
            name: value
            for name, value in alone.final_metrics.items()
            if f"{module_id}/{name}" in together.final_metrics and "second" not in name
        }
        assert {"total_loss", "policy_loss", "num_rows", "epoch"} <= own.keys()  # a single one goes without its id
        assert own == {name: together.final_metrics[f"{module_id}/{name}"] for name in own}
    assert together.weights_hash != train(make_job("walk")).weights_hash


def test_a_resumed_run_ends_with_the_same_bits(make_job, tmp_path):
    undisturbed = train(make_job(run=str(tmp_path / "undisturbed")))
    job = make_job(checkpoint={"every_steps": 10, "keep_last": 9})
    done = train(job)
    assert done.weights_hash == undisturbed.weights_hash
    forget_all_but_the_first_checkpoint(done.run)
    assert train(job).weights_hash == undisturbed.weights_hash
    assert [row["name"] for row in RunDirectory(done.run).rows("event")] == ["resumed"]


def test_the_policy_of_each_module_acts_in_its_own_spaces_on_its_own_scale(make_job):
    run = train(make_job()).run
    walk, run_policy = load_policy(run, module_id="walk"), load_policy(run, module_id="run")
    assert walk(np.zeros((4, 3), np.float32)).dtype.kind == "i"
    assert run_policy(np.zeros((4, 2), np.float32)).shape == (4, 1)
    alone = load_policy(train(make_job("walk")).run)
    observations = np.random.default_rng(0).normal(10, 9, (50, 3)).astype(np.float32)
    np.testing.assert_array_equal(walk(observations), alone(observations))
    with pytest.raises(ConfigError, match="module_id: got nothing, with several modules; allowed: run, walk; name one"):
        load_policy(run)
    with pytest.raises(ConfigError, match="module_id: got 'leg'; allowed: run, walk"):
        load_policy(run, module_id="leg")


def test_a_checkpoint_knows_the_normalisation_and_the_data_of_each_module(make_job):
    job = make_job()
    run = train(job).run
    _, metadata = CheckpointStore(run / "checkpoints").load()
    data = open_training_data(job)
    assert metadata["normalize"] == {"run": None, "walk": data.modules["walk"].normalize["observations"].to_json()}
    assert metadata["content_hash"] == {name: module.content_hash for name, module in data.modules.items()}
    facts = dataset_facts(RunDirectory(run).rows("dataset"), "run")
    assert (facts["num_episodes"], facts["num_episodes_used"]) == (25, 13)
    assert dataset_facts(RunDirectory(run).rows("dataset"), "walk")["num_episodes_used"] == 40
    last = RunDirectory(run).rows("train")[-1]
    assert last["run/epoch"] == pytest.approx(30 * 32 / facts["num_transitions"])
    discounts = {name: module.plan.feed.discount for name, module in data.modules.items()}
    assert discounts == {"walk": 0.99, "run": 0.9}


def test_another_dataset_in_the_place_of_one_is_named(make_job, other_dataset, feed_dataset, tmp_path):
    moved = tmp_path / "moved.zarr"
    shutil.copytree(other_dataset, moved)
    job = make_job(dataset={"walk": str(feed_dataset), "run": str(moved)})
    run = train(job).run
    (run / "result.json").unlink()
    shutil.rmtree(moved)
    shutil.copytree(feed_dataset, moved)
    with pytest.raises(DatasetError, match=r"dataset .*moved\.zarr: got content hash .*restore that dataset"):
        train(job)


def test_a_run_goes_on_with_the_generation_that_it_began_with(make_job, other_dataset, feed_dataset, tmp_path):
    grown = tmp_path / "grown.zarr"
    shutil.copytree(other_dataset, grown)
    data = {"walk": str(feed_dataset), "run": str(grown)}
    done = train(make_job(dataset=data, checkpoint={"every_steps": 10, "keep_last": 9}))
    with OfflineDataset.open(grown) as dataset, DatasetWriter(grown, append=True) as writer:
        writer.add_episode(dataset.episode(0))
    forget_all_but_the_first_checkpoint(done.run)
    assert (
        train(make_job(dataset=data, checkpoint={"every_steps": 10, "keep_last": 9})).weights_hash == done.weights_hash
    )
    new = train(make_job(dataset=data, run=str(tmp_path / "new")))
    assert dataset_facts(RunDirectory(new.run).rows("dataset"), "run")["num_episodes"] == 26


def test_a_checkpoint_of_version_0_1_still_resumes_and_acts(make_job, feed_dataset):
    job = make_job("walk", dataset=str(feed_dataset))
    done = train(job)
    path = CheckpointStore(done.run / "checkpoints").latest()
    before = load_policy(done.run)
    state, metadata = load_checkpoint(path)
    del metadata["constructor"]["config"]["module_algorithms"]
    bare = {key: metadata[key]["default_module"] for key in ("normalize", "content_hash")}
    assert bare["normalize"] is not None
    save_checkpoint(path, state, metadata | bare)
    observations = np.random.default_rng(0).normal(10, 9, (50, 3)).astype(np.float32)
    np.testing.assert_array_equal(load_policy(done.run)(observations), before(observations))
    (done.run / "result.json").unlink()
    assert train(job).weights_hash == done.weights_hash


def test_the_memory_budget_is_divided_among_the_modules(make_job):
    data = {"memory_budget_bytes": 200_001}
    together, alone = (open_training_data(make_job(*ids, data=data)).modules["run"].plan for ids in ((), ("run",)))
    assert together.feed.memory_budget_bytes == 100_000
    assert alone.feed.memory_budget_bytes == 200_001


def test_rewards_are_scaled_for_those_that_read_them_and_for_nobody_they_are_refused(make_job):
    data = {"reward_scale": 0.5, "reward_shift": -1}
    modules = open_training_data(make_job(data=data)).modules
    assert [sorted(modules[name].plan.feed.transforms) for name in ("run", "walk")] == [["rewards"], ["observations"]]
    with pytest.raises(
        ConfigError, match=r"data\.reward_scale and data\.reward_shift: got 0\.5 and -1, for bc; .*leave them out"
    ):
        open_training_data(make_job("walk", data=data))


def test_a_dataset_too_small_for_the_shards_is_refused_before_anything_is_written(make_job, tmp_path):
    with pytest.raises(ConfigError, match="num_shards: got 512 for 478 usable transitions"):
        train(make_job("walk", "run", num_shards=512, batch_size=512, modules={}, algorithm={"name": "bc"}))
    assert list(tmp_path.iterdir()) == []


def test_a_row_of_the_curve_names_its_modules_where_there_are_several():
    learner = {f"seconds_{part}": 0.5 for part in ("computing", "exchanging", "waiting")}
    learner |= {"steps_per_second": 9.0, "num_skipped_steps_lifetime": 1}
    merged: Result = {"a": {"total_loss": 1.0, "policy_loss": 2.0}, "b": {"total_loss": None}, "all_modules": learner}
    row = curve_row(merged, {"a": 0.5, "b": 0.25})
    assert (row["a/total_loss"], row["a/epoch"], row["b/epoch"], row["compute_seconds"]) == (1.0, 0.5, 0.25, 0.5)
    assert losses_of(row) == {"a loss": 1.0}
    assert losses_of(row | {"b/total_loss": 3.0}) == {"a loss": 1.0, "b loss": 3.0}
    only_b = curve_row({"b": {"total_loss": 4.0}, "all_modules": learner}, {"a": 0.5, "b": 0.25})
    assert losses_of(only_b) == {"b loss": 4.0}  # a module that no step updated changes no name
    single = curve_row({"a": merged["a"], "all_modules": learner}, {"a": 0.5})
    assert (single["total_loss"], single["epoch"]) == (1.0, 0.5)
    assert losses_of(single) == {"loss": 1.0}


def test_the_result_is_json(make_job):
    result = json.loads((train(make_job()).run / "result.json").read_text())
    assert {"walk/total_loss", "run/value_loss"} <= result["final_metrics"].keys()
