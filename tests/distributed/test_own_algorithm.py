"""A user's own algorithm trains on learner processes, outlives one of them, is saved and restored."""

import importlib
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from faults import pid_of, send_signal
from group_cases import SPEC, assert_learners_agree, flat, group_config, rows_of

from dask_rl.learners.algorithms import registry
from dask_rl.learners.group import LearnerGroup
from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster

NUM_CALLS = 6
SOURCE = Path(__file__).parents[1] / "support" / "own_algorithm.py"


@pytest.fixture(scope="module")
def spare_worker():
    """Two workers and one in reserve."""
    with open_cluster(ClusterConfig(num_workers=3), num_workers=3) as client:
        client.wait_for_workers(3, timeout=60)
        yield client


@pytest.fixture(scope="module")
def kinds():
    """Names of the algorithm as workers can import it, and as a notebook defines it: in no module at all."""
    notebook = SOURCE.read_text(encoding="utf-8").replace("own-importable", "own-notebook")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_ALGORITHMS", dict(registry._ALGORITHMS))
        importlib.import_module("own_algorithm")  # here: other tests know the project's algorithms only
        exec(compile(notebook, "<cell>", "exec"), {"__name__": "__main__"})
        yield ("own-importable", "own-notebook")


def settings(name: str) -> dict:
    return {"name": name, "temperature": 2.0, "learning_rate": 1e-2}


def train(group: LearnerGroup, calls: range) -> None:
    for seed in calls:
        group.update_from_batch(rows_of(12, seed), num_epochs=2, minibatch_size=6, shuffle_batch_per_epoch=True)


@pytest.fixture(scope="module")
def undisturbed(spare_worker, kinds) -> np.ndarray:
    with LearnerGroup(group_config(2, settings(kinds[0])), module_spec=SPEC, client=spare_worker) as group:
        train(group, range(NUM_CALLS))
        return flat(group.get_weights())


@pytest.mark.parametrize("kind", [0, 1], ids=["importable", "notebook"])
def test_own_algorithm_outlives_a_learner_and_is_restored(spare_worker, kinds, undisturbed, kind, tmp_path):
    with LearnerGroup(group_config(2, settings(kinds[kind])), module_spec=SPEC, client=spare_worker) as group:
        start = flat(group.get_weights())
        train(group, range(2))
        pid = pid_of(group, 1)
        send_signal(pid, signal.SIGKILL)()
        train(group, range(2, 4))
        assert pid_of(group, 1) != pid  # another process, which has to know the class as well
        assert group.get_stats()["num_restarts"] == 1
        path = group.save_to_path(tmp_path / "saved")
        train(group, range(4, NUM_CALLS))
        assert_learners_agree(group)
        np.testing.assert_array_equal(flat(group.get_weights()), undisturbed)
        assert not np.array_equal(undisturbed, start)
    with LearnerGroup.from_checkpoint(path, client=spare_worker) as group:
        assert set(group.get_state("learner/optimizers")["learner"]["optimizers"]["default_module"]) == {
            "policy",
            "value",
        }
        train(group, range(4, NUM_CALLS))
        np.testing.assert_array_equal(flat(group.get_weights()), undisturbed)


def test_a_module_with_an_algorithm_of_a_notebook_comes_to_a_group_that_runs(spare_worker, kinds):
    with LearnerGroup(group_config(2, {"name": "bc"}), module_spec=SPEC, client=spare_worker) as group:
        group.add_module(module_id="own", module_spec=SPEC, config_overrides=settings(kinds[1]))
        results = group.update_from_batch({"own": rows_of(12)})
        assert {"policy_loss", "value_loss"} <= results[0]["own"].keys()
        assert_learners_agree(group)


def test_a_fresh_process_restores_it_where_it_is_imported_and_says_what_is_missing_where_not(kinds, tmp_path):
    with LearnerGroup(group_config(0, settings(kinds[0])), module_spec=SPEC) as group:
        train(group, range(2))
        path = group.save_to_path(tmp_path / "saved")
        wanted = flat(group.get_weights())
    code = (
        f"import numpy as np; from dask_rl import LearnerGroup; group = LearnerGroup.from_checkpoint({str(path)!r}); "
        "weights = group.get_weights(); "
        f"np.save({str(tmp_path / 'restored.npy')!r}, np.concatenate("
        "[np.asarray(w).ravel() for m in sorted(weights) for _, w in sorted(weights[m].items())]))"
    )

    def run(code: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=SOURCE.parent,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    known = run(f"import own_algorithm; {code}")
    assert known.returncode == 0, known.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "restored.npy"), wanted)
    unknown = run(code)
    assert unknown.returncode == 1
    message = "algorithm.name: got 'own-importable'; allowed: bc, iql; use one of these, or import the module that "
    assert f"ConfigError: {path}: {message}" in unknown.stderr
