"""The public face: every promised name, typed, and nothing heavy before it is used."""

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dask_rl

ROOT = Path(__file__).parents[1]
PROMISED = [
    "OfflineDataset",
    "DatasetWriter",
    "Episode",
    "MultiAgentEpisode",
    "import_dataset",
    "export_dataset",
    "import_arrays",
    "import_frame",
    "transform_dataset",
    "TransformConfig",
    "EpisodeRecorder",
    "ImportOptions",
    "TrainJob",
    "load_job",
    "train",
    "LiveRun",
    "attach",
    "install_dashboard",
    "evaluate",
    "EvaluationConfig",
    "collect",
    "CollectConfig",
    "LearnerGroup",
    "LearnerGroupConfig",
    "LearnersConfig",
    "RLModule",
    "RLModuleSpec",
    "MultiRLModuleSpec",
    "register_module",
    "register_algorithm",
    "Algorithm",
    "AlgorithmConfig",
    "OptimizerSpec",
    "Policy",
    "load_policy",
    "DaskRLError",
    "__version__",
]


def test_the_promised_names_are_the_public_ones():
    assert sorted(dask_rl.__all__) == sorted(PROMISED)
    assert dir(dask_rl) == sorted(PROMISED)


@pytest.mark.parametrize("name", PROMISED)
def test_every_name_has_its_object(name):
    value = getattr(dask_rl, name)
    assert getattr(value, "__name__", name) == name
    assert vars(dask_rl)[name] is value


def test_other_names_are_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'dask_rl' has no attribute 'nothing'"):
        _ = dask_rl.nothing


def test_the_version_is_that_of_the_distribution():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert dask_rl.__version__ == project["version"] == importlib.metadata.version("dask-rl")


def test_importing_loads_nothing_heavy_and_is_fast():
    code = (
        "import sys, time; began = time.process_time(); import dask_rl; seconds = time.process_time() - began;"
        "print(sorted({'torch', 'numpy', 'dask', 'distributed', 'zarr', 'pydantic'} & set(sys.modules)), seconds < 0.2)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] True\n"


def test_names_of_storage_need_no_torch():
    code = (
        "import sys; from dask_rl import DaskRLError, DatasetWriter, Episode, OfflineDataset, import_dataset;"
        "print(sorted({'torch', 'distributed'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_type_checkers_see_each_name_where_it_is_loaded_from():
    tree = ast.parse(Path(dask_rl.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    loaded = {name: f"dask_rl.{home}" for name, home in dask_rl._HOMES.items()}
    assert seen == loaded
    assert (Path(dask_rl.__file__).parent / "py.typed").is_file()
