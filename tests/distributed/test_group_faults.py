"""What a learner group does with what goes wrong around it, and that nothing stays behind."""

import gc
import time

import numpy as np
import pytest
import torch
from distributed import Client, LocalCluster
from gymnasium.spaces import Box
from worker_code import open_files

from dask_rl.learners.algorithms import registry
from dask_rl.learners.algorithms.bc import BC, BCConfig
from dask_rl.learners.config import LearnerGroupConfig, LearnersConfig
from dask_rl.learners.dask_handle import DaskHandle
from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.module import RLModuleSpec
from dask_rl.learners.workers import Place, WorkerPool
from dask_rl.storage.checkpoints.store import save_checkpoint
from dask_rl.storage.errors import CheckpointError, ConfigError, LearnerError, LearnerLostError

SPEC = RLModuleSpec(Box(-np.inf, np.inf, (5,)), Box(-1, 1, (2,)))


def make_config(num_learners: int, name: str = "bc") -> LearnerGroupConfig:
    learners = LearnersConfig(num_learners=num_learners, compile="off", num_threads_per_learner=1)
    return LearnerGroupConfig(algorithm={"name": name, "hidden_sizes": [8]}, learners=learners)


def make_batch(rows: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    actions = torch.rand(rows, 2, generator=generator) * 2 - 1
    return {"observations": torch.randn(rows, 5, generator=generator), "actions": actions}


def policy_weights(group: LearnerGroup) -> np.ndarray:
    weights = group.get_weights()["default_module"]
    return np.concatenate([weights[name].numpy().ravel() for name in sorted(weights)])


def test_restoring_an_earlier_state_in_place_repeats_the_updates_exactly():
    with LearnerGroup(make_config(0), module_spec=SPEC) as group:
        shuffled = {"num_epochs": 2, "minibatch_size": 4, "shuffle_batch_per_epoch": True}
        group.update_from_batch(make_batch(12), **shuffled)
        state = group.get_state()
        outcomes = []
        for _ in range(2):
            group.set_state(state)
            group.update_from_batch(make_batch(12), **shuffled)
            outcomes.append(policy_weights(group))
        np.testing.assert_array_equal(*outcomes)


def test_other_iterables_are_not_taken_for_earlier_ones(cluster_client):
    with LearnerGroup(make_config(2), module_spec=SPEC, client=cluster_client) as group:
        for seed in range(4):
            group.update_from_iterators([[make_batch(4, seed)] for _ in range(2)], num_iters=1)
        last = group.get_weights()
        with LearnerGroup(make_config(0), module_spec=SPEC) as alone:
            for seed in range(4):
                alone.update_from_batch(make_batch(4, seed))
            np.testing.assert_allclose(
                policy_weights(alone),
                np.concatenate([last["default_module"][n].numpy().ravel() for n in sorted(last["default_module"])]),
                rtol=2e-4,
                atol=1e-6,
            )


def test_a_checkpoint_that_cannot_be_built_from_says_why(tmp_path, monkeypatch):
    class StrangeConfig(BCConfig):
        name: str = "strange"

    class Strange(BC):
        name = "strange"
        Config = StrangeConfig

    with monkeypatch.context() as patch:
        patch.setitem(registry._ALGORITHMS, "strange", Strange)
        with LearnerGroup(make_config(0, "strange"), module_spec=SPEC) as group:
            path = group.save_to_path(tmp_path / "strange")
    with pytest.raises(ConfigError, match="import the module that registers your own"):
        LearnerGroup.from_checkpoint(path)
    foreign = save_checkpoint(tmp_path / "foreign", {"x": 1}, {})
    with pytest.raises(CheckpointError, match="foreign: got a checkpoint of None; allowed: one of a LearnerGroup"):
        LearnerGroup.from_checkpoint(foreign)


def test_workers_that_are_threads_are_refused():
    with (
        LocalCluster(n_workers=2, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
        pytest.raises(ConfigError, match="got 2, and workers that are threads of one process"),
    ):
        LearnerGroup(make_config(2), module_spec=SPEC, client=client)


def test_a_group_without_a_cluster_starts_no_crowd_of_workers(monkeypatch):
    def none():
        raise ValueError("no client")

    monkeypatch.setattr("dask_rl.learners.group.get_client", none)
    with pytest.raises(ConfigError, match=r"num_learners: got 4000; allowed: \d+ here; pass the client"):
        LearnerGroup(make_config(4000), module_spec=SPEC)


def test_workers_with_too_few_threads_are_not_enough(cluster_client):
    config = make_config(1)
    learners = config.learners.model_copy(update={"num_cpus_per_learner": 2, "workers_timeout_seconds": 0.1})
    config = config.model_copy(update={"learners": learners})
    with pytest.raises(
        ConfigError, match="0 usable workers of 2; allowed: one worker process a learner with 2 threads"
    ):
        LearnerGroup(config, module_spec=SPEC, client=cluster_client)


def test_an_actor_that_cannot_be_constructed_is_one_line_and_lets_the_others_go(cluster_client, monkeypatch):
    released = []
    release = DaskHandle.release

    def start(handle, timeout):
        if handle.where == last:
            raise RuntimeError("Error during\ndeserialization")

    workers = cluster_client.scheduler_info(n_workers=-1)["workers"]
    last = max(workers, key=lambda address: str(workers[address]["name"]))
    monkeypatch.setattr(DaskHandle, "start", start)
    monkeypatch.setattr(DaskHandle, "release", lambda handle: (released.append(handle.where), release(handle)))
    with pytest.raises(LearnerError, match="starting: got RuntimeError: Error during deserialization; install"):
        LearnerGroup(make_config(2), module_spec=SPEC, client=cluster_client)
    assert len(released) == 2


def test_a_worker_that_is_gone_before_its_learner_starts_is_missed_soon(cluster_client, monkeypatch):
    monkeypatch.setattr(WorkerPool, "wait_for", lambda *args, **kwargs: [Place("tcp://127.0.0.1:9", "gone")])
    began = time.monotonic()
    config = make_config(1)
    config = config.model_copy(update={"learners": config.learners.model_copy(update={"max_restarts": 1})})
    with pytest.raises(LearnerLostError, match=r"learner at tcp://127.0.0.1:9, starting: got a lost worker process"):
        LearnerGroup(config, module_spec=SPEC, client=cluster_client)
    assert time.monotonic() - began < 30


def test_the_sockets_of_a_group_go_with_it_and_not_when_its_garbage_is_collected(cluster_client):
    cluster_client.run(gc.disable)
    try:
        counts = []
        for _ in range(4):
            with LearnerGroup(make_config(2), module_spec=SPEC, client=cluster_client) as group:
                group.update_from_batch(make_batch(4))
            counts.append(max(cluster_client.run(open_files).values()))
    finally:
        cluster_client.run(gc.enable)
    assert counts[-1] < counts[0] + 9  # a store that stays open holds nine


def test_workers_of_its_own_neither_pause_nor_spill_and_are_closed(monkeypatch):
    def none():
        raise ValueError("no client")

    monkeypatch.setattr("dask_rl.learners.group.get_client", none)
    with LearnerGroup(make_config(1), module_spec=SPEC) as group:
        found = group.foreach_learner(lambda learner: __import__("dask").config.get("distributed.worker"))
        settings = found[0].get()
        client = group.manager.handles[0]._future.client
        ttl, plugins, closable = client.run_on_scheduler(
            lambda dask_scheduler: (
                dask_scheduler.worker_ttl,
                list(dask_scheduler.plugins),
                dask_scheduler.workers_to_close(n=1),
            )
        )
        group.update_from_batch(make_batch(4))
    assert [settings["memory"][name] for name in ("target", "spill", "pause")] == [False] * 3
    assert settings["profile"]["enabled"] is False, "its record of stacks would grow for ever"
    assert ttl == 60, "a worker that is silent is replaced"
    assert "keep-learners" in plugins
    assert closable == []
    assert client.status == "closed"
