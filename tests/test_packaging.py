"""What is shipped is what is in the tree: links that are no links would make an almost empty wheel in silence."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("storage", "learners", "pipeline")


def shipped_files() -> set[str]:
    """The files of the tree that belong into the package, by their names in it."""
    files = {f"dask_rl/{name}" for name in ("__init__.py", "__main__.py", "py.typed")}
    for layer in LAYERS:
        for path in (ROOT / layer).rglob("*"):
            if path.suffix in (".py", ".html", ".jinja"):
                files.add(f"dask_rl/{path.relative_to(ROOT)}")
    return files


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist, built from a copy of the tree, as the build leaves files in it."""
    folder = tmp_path_factory.mktemp("build")
    tree = folder / "tree"
    tree.mkdir()
    names = [*LAYERS, "dask_rl", "pyproject.toml", "README.md", "LICENSE"]
    subprocess.run(["cp", "-a", *(str(ROOT / name) for name in names), str(tree)], check=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "out"), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = (folder / "out").glob("*.whl"), (folder / "out").glob("*.tar.gz")
    return wheel, sdist


def test_the_tree_is_worth_comparing_with():
    files = shipped_files()
    assert "dask_rl/pipeline/views/report.html" in files
    assert "dask_rl/pipeline/jobs/render/templates/sbatch.jinja" in files
    for layer in LAYERS:
        assert sum(name.startswith(f"dask_rl/{layer}/") for name in files) > 10


def test_the_wheel_holds_exactly_the_tree(built):
    names = zipfile.ZipFile(built[0]).namelist()
    assert {name for name in names if ".dist-info/" not in name} == shipped_files()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert any(name.endswith(".dist-info/entry_points.txt") for name in names)


def test_the_sdist_holds_the_tree_with_real_files(built):
    with tarfile.open(built[1]) as archive:
        members = archive.getmembers()
    assert not [member.name for member in members if member.issym()]
    names = {member.name.partition("/")[2] for member in members if member.isfile()}
    assert shipped_files() <= names
    assert {"README.md", "LICENSE", "pyproject.toml"} <= names


def test_the_wheel_runs_without_the_checkout(built, tmp_path):
    with zipfile.ZipFile(built[0]) as archive:
        archive.extractall(tmp_path)
    code = (
        "import pathlib, sys; sys.path.insert(0, sys.argv[1]); import dask_rl, dask_rl.storage;"
        "from dask_rl.pipeline.views.cli import run; from dask_rl.pipeline.views.report_page import TEMPLATES;"
        "page = TEMPLATES / 'report.html'; paths = [dask_rl.__file__, dask_rl.storage.__file__, page];"
        "assert all(pathlib.Path(p).resolve().is_relative_to(sys.argv[1]) for p in paths), paths;"
        "assert page.is_file(); sys.exit(run(['--help']))"
    )
    command = [sys.executable, "-c", code, str(tmp_path.resolve())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Usage: dask-rl" in done.stdout
