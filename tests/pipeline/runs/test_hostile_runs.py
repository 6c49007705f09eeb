"""Checkpoints and runs of strangers: what they name is looked up, never imported or built."""

import json
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import psutil
import pytest
import yaml

from dask_rl.learners.group import LearnerGroup
from dask_rl.pipeline.runs.job import parse_job
from dask_rl.pipeline.runs.live.attached_run import AttachedRun
from dask_rl.pipeline.runs.live.live_run import LiveRun
from dask_rl.pipeline.runs.train import train
from dask_rl.pipeline.runs.trained_policy import load_policy
from dask_rl.pipeline.views.cli import run as run_command
from dask_rl.storage.checkpoints.header import checksum
from dask_rl.storage.checkpoints.store import load_checkpoint, save_checkpoint
from dask_rl.storage.errors import CheckpointError, ConfigError, DatasetError

MODULE = "default_module"
ALGORITHM = "constructor/config/algorithm"
SPEC = f"constructor/module_spec/{MODULE}"
GONE = object()
BIG_BOX = {"type": "Box", "dtype": "float64", "shape": [2**22], "low": 0, "high": 1}
POLICY, GROUP, BOTH = ("policy",), ("group",), ("policy", "group")


@pytest.fixture(scope="module")
def trained_run(feed_dataset, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("stranger") / "run"
    algorithm = {"name": "bc", "hidden_sizes": [8]}
    job = {"dataset": str(feed_dataset), "algorithm": algorithm, "num_steps": 1, "batch_size": 16, "run": str(run)}
    return train(parse_job(yaml.safe_dump(job))).run


@pytest.fixture
def stranger(trained_run, tmp_path):
    """Change a run's only checkpoint at a place of its metadata, with a fitting checksum."""
    run = tmp_path / "run"
    shutil.copytree(trained_run, run)
    (checkpoint,) = (run / "checkpoints").glob("step-*")

    def make(place: str, value: Any) -> tuple[Path, Path]:
        header = json.loads((checkpoint / "metadata.json").read_text())
        *above, last = place.split("/")
        node = header
        for key in above:
            node = node[key]
        if value is GONE:
            del node[last]
        else:
            node[last] = value
        (checkpoint / "metadata.json").write_text(json.dumps(header | {"checksum": checksum(header)}))
        return run, checkpoint

    return make


def load(what: str, run: Path, checkpoint: Path) -> None:
    if what == "policy":
        load_policy(run)
    else:
        LearnerGroup.from_checkpoint(checkpoint).shutdown()


HOSTILE: dict[str, tuple[str, Any, str, tuple[str, ...]]] = {
    # names
    "algorithm": (f"{ALGORITHM}/name", "hostile_module.Evil", "algorithm.name: got 'hostile_module.Evil'", BOTH),
    "algorithm of a module": ("constructor/config/module_algorithms", {MODULE: {"name": "evil"}}, "got 'evil'", BOTH),
    "module class": (f"{SPEC}/module_class", "hostile_module.Evil", "module class: got 'hostile_module.Evil'", BOTH),
    "learner class": ("class_name", "hostile_module.Evil", "got a checkpoint of 'hostile_module.Evil'", GROUP),
    "space": (f"{SPEC}/observation_space/type", "hostile_module.Evil", "unknown type 'hostile_module.Evil'", BOTH),
    "type of a space": (f"{SPEC}/observation_space/dtype", "O", "space: got ", BOTH),
    # sizes
    "wide layers": (f"{ALGORITHM}/hidden_sizes", [2**20, 2**20], r"weights policy.*: got shape \(8,\); allowed", BOTH),
    "wider layers": (f"{ALGORITHM}/hidden_sizes", [10**30], "metadata that describe no module", BOTH),
    "many layers": (f"{ALGORITHM}/hidden_sizes", [1] * 200_000, r"algorithm\.hidden_sizes", BOTH),
    "negative layers": (f"{ALGORITHM}/hidden_sizes", [-8], r"algorithm\.hidden_sizes\.0: got -8", BOTH),
    "fewer layers": (f"{ALGORITHM}/hidden_sizes", [], "weights policy", BOTH),
    "many actions": (f"{SPEC}/action_space/n", 10**12, r"allowed: shape \(1000000000000", BOTH),
    "more actions": (f"{SPEC}/action_space/n", 10**30, "space: got ", BOTH),
    "wide observations": (f"{SPEC}/observation_space", BIG_BOX | {"shape": [2**30]}, "1073741824 elements", BOTH),
    "large observations": (f"{SPEC}/observation_space", BIG_BOX, r"allowed: shape \(8, 4194304\)", BOTH),
    "many observations": (
        f"{SPEC}/observation_space",
        {"type": "Tuple", "subspaces": [BIG_BOX] * 1000},
        "elements, more than",
        BOTH,
    ),
    "many dimensions": (f"{SPEC}/observation_space", BIG_BOX | {"shape": [10**4000] * 999}, "999 dimensions", BOTH),
    "statistics": ("metadata/normalize", {"mean": [0] * 9, "std": [1] * 9, "eps": 1e-3}, "no module", POLICY),
    # types, and parts that are not there
    **{
        f"{place} as {value!r}": (place, value, f"step-.*{words}", who)
        for place, words, who in (
            ("constructor", "no module", BOTH),
            ("constructor/config", "", BOTH),
            ("constructor/module_spec", "", BOTH),
            (ALGORITHM, "", BOTH),
            (SPEC, "no module", BOTH),
            (f"{SPEC}/module_class", "", BOTH),
            (f"{SPEC}/observation_space", "", BOTH),
            ("constructor/config/learners", "no module", GROUP),
            ("metadata/step", "no module", POLICY),
            ("metadata/normalize", "no module", POLICY),
        )
        for value in (["x"],)
    },
    **{
        f"no {place}": (place, GONE, "metadata that describe no module", BOTH)
        for place in ("constructor", "constructor/config", ALGORITHM, "constructor/module_spec", f"{SPEC}/action_space")
    },
}


@pytest.mark.parametrize(("name", "what"), [(name, what) for name, case in HOSTILE.items() for what in case[3]])
def test_it_is_refused_by_name_at_once_in_little_memory(stranger, tmp_path, monkeypatch, name, what):
    (tmp_path / "hostile_module.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nclass Evil: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    place, value, words, _ = HOSTILE[name]
    run, checkpoint = stranger(place, value)
    modules, memory, began = set(sys.modules), psutil.Process().memory_info().rss, time.monotonic()
    with pytest.raises((CheckpointError, ConfigError), match=words) as caught:
        load(what, run, checkpoint)
    assert time.monotonic() - began < 10
    assert psutil.Process().memory_info().rss - memory < 600 * 2**20
    assert not {module for module in set(sys.modules) - modules if "hostile" in module}
    assert not (tmp_path / "executed").exists()
    assert str(checkpoint) in str(caught.value)
    assert len(str(caught.value)) < 1500
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("value", [GONE, 3, ["x"], "x"])
@pytest.mark.parametrize("place", ["metadata/content_hash", "metadata/step"])
def test_a_run_is_not_resumed_from_one_that_does_not_say_what_it_is_of(stranger, place, value):
    run, _ = stranger(place, value if (place, value) != ("metadata/step", 3) else "3.5")
    (run / "result.json").unlink()
    job = (run / "job.yaml").read_text()
    (run / "job.yaml").write_text(yaml.safe_dump(yaml.safe_load(job) | {"run": str(run)}))
    (run / "resolved.yaml").write_text(
        yaml.safe_dump(yaml.safe_load((run / "resolved.yaml").read_text()) | {"run": str(run)})
    )
    with pytest.raises((CheckpointError, DatasetError), match=r"checkpoints\S*: got metadata|content hash") as caught:
        train(parse_job((run / "job.yaml").read_text()))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("what", BOTH)
def test_without_the_change_it_loads(trained_run, what):
    (checkpoint,) = (trained_run / "checkpoints").glob("step-*")
    load(what, trained_run, checkpoint)


def test_weights_that_lack_what_acting_needs_are_refused(trained_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained_run, run)
    (checkpoint,) = (run / "checkpoints").glob("step-*")
    state, metadata = load_checkpoint(checkpoint)
    weights = state["learner"]["rl_module"][MODULE]
    del weights[min(weights)]
    save_checkpoint(checkpoint, state, metadata)
    for what in BOTH:
        with pytest.raises(CheckpointError, match=r"weights policy\.\S+: got none; allowed: shape"):
            load(what, run, checkpoint)


OWN_ENVIRONMENT = """
import pathlib, gymnasium, numpy
pathlib.Path(__file__).with_suffix(".mark").touch()
class Own(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1e4, 1e4, (3,), numpy.float32), gymnasium.spaces.Discrete(5)
    def reset(self, *, seed=None, options=None): return numpy.zeros(3, numpy.float32), {}
    def step(self, action): return numpy.zeros(3, numpy.float32), 1.0, True, False, {}
gymnasium.register("Own-v0", Own)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module with an environment for the data, on the path of Python; says whether it was imported."""
    (tmp_path / "hostile_module.py").write_text(OWN_ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    yield SimpleNamespace(was_imported=(tmp_path / "hostile_module.mark").exists)
    sys.modules.pop("hostile_module", None)


@pytest.fixture
def own_run(trained_run, tmp_path):
    """Copy the run; with these settings in its job, or in both of its files."""
    run = tmp_path / "run"
    shutil.copytree(trained_run, run)
    (run / "result.json").unlink()

    def write(*names: str, **settings: Any) -> Path:
        for name in names:
            values = yaml.safe_load((run / name).read_text()) | {"run": str(run)} | settings
            (run / name).write_text(yaml.safe_dump(values))
        return run

    write("job.yaml", "resolved.yaml")
    return write


BY_ID = {"environment": "hostile_module:Own-v0"}
BY_ARGUMENT = {"environment": "Wrapped-v0", "environment_kwargs": {"inner": [{"env_id": "hostile_module:Own-v0"}]}}


@pytest.mark.parametrize("evaluation", [BY_ID, BY_ARGUMENT])
def test_eval_imports_nothing_that_the_run_names_unless_it_is_told_to(own_run, module, capsys, evaluation):
    gymnasium.register("Wrapped-v0", lambda inner: gymnasium.make(**inner[0]))
    run = str(own_run("job.yaml", evaluation=evaluation))
    assert run_command(["eval", run]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "got an environment that imports 'hostile_module'; allowed: one of a module that is imported" in line
    assert "--import hostile_module" in line
    assert "--environment module:Id" in line
    assert not module.was_imported()
    kwargs = evaluation.get("environment_kwargs")
    given = ["--import", "hostile_module"] if kwargs else ["--environment", "hostile_module:Own-v0"]
    run_command(["eval", run, "--episodes", "1", *given])
    assert module.was_imported()
    assert run_command(["eval", run, "--episodes", "1"]) == (2 if kwargs else 0)  # by now it is the user's


def test_a_handle_on_another_process_s_run_imports_nothing_that_the_run_names(own_run, module):
    run = own_run("job.yaml", evaluation=BY_ID)
    client = SimpleNamespace(scheduler=SimpleNamespace(address="tcp://127.0.0.1:1"))
    summary = SimpleNamespace(name="run", path=run, num_steps=1, run_id="x", host="here")
    with pytest.raises(ConfigError, match="imports 'hostile_module'; allowed: one of a module"):
        LiveRun(AttachedRun(SimpleNamespace(client=client), summary)).evaluate()
    assert not module.was_imported()


def test_a_resumed_run_does_what_the_user_s_job_says(own_run, module):
    cluster = {"kind": "slurm", "memory_per_worker": "1GB", "slurm": {"python": "/tmp/evil"}}
    run = own_run("resolved.yaml", evaluation=BY_ID, cluster=cluster, dataset="no.zarr")
    before = (run / "job.yaml").read_text()
    job = parse_job(before)
    assert train(job).evaluation is None
    assert not module.was_imported()
    assert parse_job((run / "resolved.yaml").read_text()).model_copy(update={"learners": job.learners}) == job
    (run / "result.json").unlink()
    own_run("job.yaml", evaluation=BY_ID)
    with pytest.raises(ConfigError, match="changes since the run began"):
        train(job)
    assert not module.was_imported()
    result = train(parse_job((run / "job.yaml").read_text()))  # a job of the user's own may
    assert result.evaluation["return_mean"] == 1
