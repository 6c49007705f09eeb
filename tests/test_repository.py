"""The shape of the checkout: fixed names at the top, links that are links, imports that go down."""

import ast
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("storage", "learners", "pipeline")
TOP_LEVEL = {
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml"),
    *("benchmarks", "dask_rl", "notebooks", "tests"),
    *LAYERS,
}
GENERATED = {"build", "demo", "dist", "runs", "__pycache__"}
MODULES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))


def test_the_top_level_has_the_fixed_names():
    names = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    ignored = {name for name in names if name in GENERATED or name.endswith((".egg-info", ".zarr"))}
    assert names - ignored == TOP_LEVEL


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_are_linked_into_the_package(layer):
    link = ROOT / "dask_rl" / layer
    assert link.is_symlink(), f"{link} is no symlink: clone with core.symlinks=true, or the wheel will lack {layer}"
    assert os.readlink(link) == f"../{layer}"
    assert not (ROOT / layer).is_symlink()


def test_the_package_holds_nothing_but_its_face():
    names = {path.name for path in (ROOT / "dask_rl").iterdir()} - {"__pycache__"}
    assert names == {"__init__.py", "__main__.py", "py.typed", *LAYERS}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_layer_is_imported_by_its_bare_name_or_from_above(path):
    own = LAYERS.index(path.relative_to(ROOT).parts[0])
    above = {f"dask_rl.{layer}" for layer in LAYERS[own + 1 :]}
    for name in imported(path):
        assert name.split(".")[0] not in LAYERS, f"{name}: a second copy of every class"
        assert ".".join(name.split(".")[:2]) not in above, f"{name}: imports go down only"


def imported(path: Path) -> list[str]:
    """Absolute imports of a file, wherever in it they are."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_every_needed_version_is_pinned():
    lines = (ROOT / "constraints.txt").read_text().split()
    assert "torch==2.13.0" in lines
    for line in lines:
        name, _, version = line.partition("==")
        assert name
        assert version
        assert "+" not in version, f"{line}: a local version is on no index"
