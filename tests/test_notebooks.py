"""Every notebook is stored without outputs and runs from top to bottom."""

from pathlib import Path

import nbformat
import pytest
from ipykernel.kernelspec import write_kernel_spec
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
KERNEL = "dask-rl-tests"

all_notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """The name of a kernel that runs this very Python, whatever kernels the user has."""
    write_kernel_spec(str(tmp_path / "jupyter" / "kernels" / KERNEL))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return KERNEL


def outputs(notebook, kind):
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [output for cell in cells for output in cell.outputs if output.output_type == kind]


def test_there_is_the_quickstart():
    assert "01_quickstart" in [path.stem for path in NOTEBOOKS]


@all_notebooks
def test_no_outputs_are_stored(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.mark.slow
@all_notebooks
def test_it_runs(path, kernel, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        kernel_name=kernel,
        timeout=200,
        startup_timeout=120,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    said = "".join(output.text for output in outputs(notebook, "stream"))
    assert "Warning" not in said
    assert "Error" not in said
    figures = [output for output in outputs(notebook, "display_data") if "image/png" in output.data]
    assert len(figures) >= 3
    results = [output.data["text/plain"] for output in outputs(notebook, "execute_result")]
    assert any("http://127.0.0.1:" in text for text in results), "the dashboard's link"
    assert any("OfflineDataset(" in text for text in results), "the dataset's facts"
