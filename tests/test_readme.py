"""What README.md and CONTRIBUTING.md show is what works: their code is extracted and run."""

import importlib.util
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import dask_rl
from dask_rl import OfflineDataset, import_dataset, load_policy
from dask_rl.learners.algorithms import registry
from dask_rl.learners.config import LearnersConfig
from dask_rl.pipeline.runs.job import parse_job
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.runs.train_result import load_result
from dask_rl.pipeline.views.cli import run
from dask_rl.storage.formats import registry as formats

ROOT = Path(__file__).parents[1]
GROUPS = ("data", "jobs")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def console(page: str, program: str) -> list[str]:
    lines = "".join(blocks(page, "console")).splitlines()
    return [line for line in lines if line.startswith(f"{program} ")]


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import a code block as a module that can be pickled by name."""

    def load_block(code: str, name: str):
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load_block


def test_the_python_example_is_short_and_runs_in_the_background_too(tmp_path, monkeypatch, capsys):
    example = blocks("README.md", "python")[0]
    assert len([line for line in example.splitlines() if line]) <= 10
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    collected, loss, evaluated = capsys.readouterr().out.splitlines()
    num_steps, data_return = collected.split()
    assert int(num_steps) == 2000
    assert float(data_return) < 0
    assert float(evaluated) < 0
    assert np.isfinite(float(loss))
    exec(compile(blocks("README.md", "python")[4], "README.md", "exec"), names)
    asked, last = capsys.readouterr().out.splitlines()
    step, path, mean = asked.split()
    assert Path(path).name == f"step-{int(step):012d}"
    assert float(mean) < 0
    assert last.startswith(loss)
    assert last.endswith(load_result(RunDirectory("runs/pendulum")).weights_hash)


def test_the_example_of_a_writer_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("README.md", "python")[1], "README.md", "exec"), {})
    with OfflineDataset.open("mine.zarr") as dataset:
        assert (dataset.num_steps, dataset.num_episodes) == (4, 1)
        assert dataset.episode(0).terminated


def test_the_analysis_and_the_batches_of_your_own_work(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write, analyse, update = blocks("README.md", "python")[1:4]
    exec(compile("import dask_rl\n" + write + analyse + update, "README.md", "exec"), {})
    reward, loss = capsys.readouterr().out.splitlines()
    assert float(reward) == 1.0
    assert 0 < float(loss) < np.log(2)


def test_the_job_is_a_job():
    job = parse_job(blocks("README.md", "yaml")[0])
    assert (job.algorithm.name, job.learners.num_learners, job.run) == ("bc", 2, "runs/cartpole-bc")
    job = parse_job(blocks("README.md", "yaml")[1])
    algorithms = {module_id: job.algorithm_of(module_id).name for module_id in job.datasets}
    assert (algorithms, job.evaluated_module()) == ({"cart": "bc", "arm": "iql"}, "cart")


def test_the_limits_that_are_named_are_the_defaults():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    limits = re.findall(r"`(\w+)` \((\d+)\)", page)
    assert len(limits) >= 6
    for name, value in limits:
        assert LearnersConfig.model_fields[name].default == int(value), name


@pytest.mark.parametrize("line", console("README.md", "dask-rl"))
def test_every_command_and_option_exists(line, capsys):
    words = shlex.split(line)[1:]
    path = words[:2] if words[0] in GROUPS else words[:1]
    assert run([*path, "--help"]) == 0
    shown = capsys.readouterr().out
    for word in words:
        if word.startswith("--"):
            assert re.search(rf"{word}\b", shown), f"{' '.join(path)} has no {word}"


def test_every_format_is_named(capsys):
    assert run(["data", "import", "--help"]) == 0
    shown, page = capsys.readouterr().out, (ROOT / "README.md").read_text(encoding="utf-8")
    for name in formats.IMPORTERS:
        assert re.search(rf"\b{name}\b", shown), f"--format does not name {name}"
        assert re.search(rf"^\|.*\| `{name}`", page, re.MULTILINE), f"the table of formats has no {name}"


def test_every_command_is_shown(capsys):
    shown = {tuple(shlex.split(line)[1:3]) for line in console("README.md", "dask-rl")}
    for group in ([], *([group] for group in GROUPS)):
        run([*group, "--help"])
        commands = re.findall(r"^│ ([\w-]+) ", capsys.readouterr().out.partition("Commands")[2], re.MULTILINE)
        assert commands
        for command in commands:
            assert any(words[: len(group) + 1] == (*group, command)[:2] for words in shown), f"{command} is missing"


@pytest.mark.parametrize("line", [line for page in PAGES for line in console(page, "make")])
def test_every_make_target_exists(line):
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line.split()[1] in targets


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_the_algorithm_of_the_guide_trains_on_two_learners_and_is_restored(load, tmp_path, monkeypatch):
    """It stops after its first checkpoint, goes on from there, and ends with the bits of a run without a stop."""
    monkeypatch.setattr(registry, "_ALGORITHMS", dict(registry._ALGORITHMS))
    algorithm, use = blocks("CONTRIBUTING.md", "python")[:2]
    assert len([line for line in (algorithm + use).splitlines() if line]) < 40
    load(algorithm, "my_awr")
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("README.md", "python")[1], "README.md", "exec"), {})
    use = use.replace('"pendulum.zarr",', '"mine.zarr", batch_size=8, num_shards=2,')
    assert "mine.zarr" in use
    code = compile(use, "CONTRIBUTING.md", "exec")
    exec(code, {"__name__": "__main__"})
    undisturbed = load_policy("awr")._module.get_state()
    rows = RunDirectory("awr").rows("train")
    assert rows[-1]["value_loss"] < rows[0]["value_loss"]
    assert {"gradient_norm/policy", "gradient_norm/value"} <= rows[-1].keys()
    Path("awr/result.json").unlink()
    shutil.rmtree("awr/checkpoints/step-000000000040")  # as if it had been killed before
    namespace = {"__name__": "__main__"}
    exec(code, namespace)
    assert {row["name"]: row["step"] for row in RunDirectory("awr").rows("event")} == {"resumed": 20}
    restored = namespace["policy"]._module.get_state()
    assert all(torch.equal(restored[name], undisturbed[name]) for name in undisturbed)
    assert namespace["policy"](np.zeros((2, 3), np.float32)).shape == (2,)


def test_data_from_python_becomes_datasets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("README.md", "python")[5], "README.md", "exec"), {})
    with dask_rl.OfflineDataset.open("arrays.zarr") as arrays, dask_rl.OfflineDataset.open("played.zarr") as played:
        assert (arrays.num_steps, arrays.num_episodes, played.num_episodes) == (10, 2, 1)
        assert arrays.episode_terminations.tolist() == [False, True]


def test_the_importer_of_the_guide_imports(load, tmp_path, monkeypatch):
    importer = load(blocks("CONTRIBUTING.md", "python")[2], "guide_npz").NpzFolderImporter()
    monkeypatch.setitem(formats.IMPORTERS, importer.name, importer)
    source = tmp_path / "source"
    source.mkdir()
    for number, terminated in enumerate((True, False)):
        observations = np.full((4, 2), number, np.float32)
        actions, rewards = np.zeros((3, 1), np.float32), np.ones(3, np.float32)
        np.savez(
            source / f"{number}.npz", observations=observations, actions=actions, rewards=rewards, terminated=terminated
        )
    summary = import_dataset(source, tmp_path / "d.zarr")
    assert (summary.format, summary.num_steps, summary.num_episodes) == ("npz-folder", 6, 2)
    assert (summary.num_terminated, summary.num_truncated, summary.return_mean) == (1, 1, 3.0)
