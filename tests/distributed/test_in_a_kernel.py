"""Background runs in a real Jupyter kernel: what a cell shows, what an interrupt does, and what its end leaves."""

import os
import signal
import threading

import psutil
import pytest
from ipykernel.kernelspec import write_kernel_spec
from jupyter_client.manager import KernelManager
from run_commands import wait_for

from dask_rl.pipeline.runs.run_directory import RunDirectory

pytestmark = pytest.mark.service

SECONDS = 120
SETUP = """
import dask_rl, pathlib, sys, threading, traceback
from distributed import Client, LocalCluster

cluster = LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0")
client = Client(cluster)
pendulum = {"environment": "Pendulum-v1", "num_episodes": 2}
dask_rl.collect(dask_rl.CollectConfig(**pendulum), "data.zarr").close()
job = dask_rl.TrainJob(
    dataset="data.zarr", algorithm={"name": "bc", "hidden_sizes": [8]}, num_steps=10**9, batch_size=16, run="run",
    learners={"num_learners": 1, "compile": "off", "num_threads_per_learner": 1},
    evaluation=pendulum, checkpoint={"every_steps": 20},
)
run = dask_rl.train(job, client=client, background=True)

def wait_for_a_step(timeout=60):
    before, turn = run.step, threading.Event()
    for _ in range(10 * timeout):
        if run.step > before:
            return
        turn.wait(0.1)
    raise TimeoutError(run)

def tell_when_in(function):
    main = threading.main_thread().ident

    def look():
        while function not in [frame.name for frame in traceback.extract_stack(sys._current_frames()[main])]:
            threading.Event().wait(0.05)
        pathlib.Path("waiting").touch()

    threading.Thread(target=look, daemon=True).start()

wait_for_a_step()
workers = list(client.scheduler_info()["workers"])
"""


class Kernel:
    """A kernel, and what its cells put out."""

    def __init__(self, manager):
        self.manager = manager
        self.client = manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)

    def run(self, code):
        """Run a cell and return the messages of its output."""
        said = []

        def hear(message):
            said.append((message["msg_type"], message["content"]))

        self.client.execute_interactive(code, timeout=SECONDS, output_hook=hear, allow_stdin=False)
        return said

    def interrupted(self, call, function, marker):
        """Interrupt a cell where it is in a function; return what it wrote to stderr and what it displayed."""
        marker.unlink(missing_ok=True)

        def interrupt():
            wait_for(marker.exists, f"the call of {function}")
            os.killpg(self.manager.provisioner.pgid, signal.SIGINT)  # as "interrupt" does, in no loop of this thread

        thread = threading.Thread(target=interrupt)
        thread.start()
        said = self.run(f"tell_when_in({function!r}); {call}")
        thread.join(SECONDS)
        assert [content["ename"] for kind, content in said if kind == "error"] == ["KeyboardInterrupt"], said
        stderr = "".join(content["text"] for kind, content in said if kind == "stream" and content["name"] == "stderr")
        return stderr, [content for kind, content in said if kind in ("display_data", "update_display_data")]

    def text(self, code):
        """Run a cell and return the text that it wrote; it must not raise."""
        said = self.run(code)
        errors = [content for kind, content in said if kind == "error"]
        assert not errors, errors
        return "".join(content["text"] for kind, content in said if kind == "stream")


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A kernel of this very Python, working in tmp_path."""
    write_kernel_spec(str(tmp_path / "jupyter/kernels/dask-rl-tests"))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    manager = KernelManager(kernel_name="dask-rl-tests")
    manager.start_kernel(cwd=str(tmp_path))
    kernel = Kernel(manager)
    try:
        yield kernel
    finally:
        kernel.client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.slow
def test_interrupted_cells_leave_a_run_alone_and_the_end_of_the_kernel_stops_it_with_a_checkpoint(kernel, tmp_path):
    kernel.text(SETUP)
    marker = tmp_path / "waiting"
    for call, function, what in (
        ("run.wait()", "wait_for_end", "the wait for its end"),
        ("run.progress()", "wait_for_end", "its progress"),
        ("run.evaluate(100000)", "map_in_order", "an evaluation"),
    ):
        said, shown = kernel.interrupted(call, function, marker)
        assert said.startswith(f"dask-rl: {what} was interrupted; run run goes on: it is "), said
        assert "run.stop() saves and ends it" in said
        assert len(shown) >= (2 if call == "run.progress()" else 0)
        assert all("<progress" in update["data"]["text/html"] for update in shown)

    state = "print(workers == list(client.scheduler_info()['workers']), len(run.metrics('event')))"
    assert kernel.text(f"wait_for_a_step(); {state}") == "True 0\n"
    shown = [content["data"] for kind, content in kernel.run("run") if kind == "execute_result"]
    assert "<caption>run run</caption>" in shown[0]["text/html"]
    shown = [content["data"] for kind, content in kernel.run("run.plot()") if kind == "execute_result"]
    assert "image/png" in shown[0]

    process = psutil.Process(kernel.manager.provisioner.pid)
    family = [process, *process.children(recursive=True)]
    step = int(kernel.text("print(run.step)"))
    kernel.manager.shutdown_kernel()
    _, alive = psutil.wait_procs(family, timeout=SECONDS)
    assert not alive
    saved = int((tmp_path / "run/checkpoints/latest").read_text().removeprefix("step-"))
    assert saved >= step > 0
    RunDirectory(tmp_path / "run").refuse_if_live()
