"""Every notebook is stored without outputs and runs from top to bottom."""

import re
from pathlib import Path

import nbformat
import pytest
from ipykernel.kernelspec import write_kernel_spec
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
KERNEL = "dask-rl-tests"
SHOWN = {
    "01_quickstart": (3, ["http://127.0.0.1:", "OfflineDataset("]),
    "02_explore_a_dataset": (4, ["http://127.0.0.1:", "OfflineDataset(", "dask.array<", "VerifyReport(", "damaged:"]),
    "03_interactive_training": (2, ["/learners'", "paused at step", "now running", "interrupted at step", "complete"]),
    "04_custom_algorithm": (2, ["by hand", "return_mean", "went on at step 750"]),
    "05_scale_out": (
        1,
        ["here   loss", "there  loss", "rejoined", "#SBATCH -p gpu", "mountPath: /data", "replicas: 2"],
    ),
    "06_scheduled_jobs": (
        1,
        ["skipped", "promoted", "current →", "Policy(", "nights.html", '"exit_code": 1', "0 2 * * *"],
    ),
}
"""How many figures each notebook shows at least, and words among its results."""
CHECK_FIGURES = """
import matplotlib.pyplot as plt
show = plt.show
def show_labelled():
    for axes in (axes for number in plt.get_fignums() for axes in plt.figure(number).axes if axes.axison):
        assert axes.get_label() == "<colorbar>" or axes.get_xlabel(), "an axis without a label"
        says = axes.get_ylabel() or axes.get_title() or axes.get_legend()  # a legend with the units of its lines
        assert says, "an axis that says nothing of its values"
    show()
plt.show = show_labelled
"""
FOREIGN_PATHS = re.compile(r"/(home|Users|root|work|tmp|opt|mnt)/")

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


def test_every_notebook_is_known():
    assert [path.stem for path in NOTEBOOKS] == list(SHOWN)


@all_notebooks
def test_no_outputs_are_stored(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)
        assert not FOREIGN_PATHS.search(cell.source)


def test_the_algorithm_is_that_of_the_guide():
    notebook = nbformat.read(ROOT / "notebooks" / "04_custom_algorithm.ipynb", as_version=4)
    written = "\n\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = re.search(r"^import torch\n.*?(?=^```)", guide, re.DOTALL | re.MULTILINE)
    assert block
    assert block[0].rstrip() in written


@pytest.mark.notebook
@all_notebooks
def test_it_runs(path, kernel, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(CHECK_FIGURES))
    client = NotebookClient(
        notebook,
        kernel_name=kernel,
        timeout=300,
        startup_timeout=120,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    said = "".join(output.text for output in outputs(notebook, "stream"))
    assert not re.search(r"Warning|\w+Error\b|Traceback", said)
    results = outputs(notebook, "execute_result")
    num_figures, words = SHOWN[path.stem]
    figures = [output for output in [*outputs(notebook, "display_data"), *results] if "image/png" in output.data]
    assert len(figures) >= num_figures
    told = said + "".join(output.data.get("text/plain", "") for output in results)
    for word in words:
        assert word in told
