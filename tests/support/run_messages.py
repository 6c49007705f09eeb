"""Messages of runs and rows of learners, as they come to a scheduler."""

from typing import Any


def begin(run_id: str = "r1", **facts: Any) -> dict[str, Any]:
    own = {"name": "a run", "path": f"/runs/{run_id}", "host": "here", "pid": 7, "num_steps": 100, "group_id": "g1"}
    return {"kind": "begin", "run_id": run_id, "modules": ["default_module"], "job": {}, "rows": [], **own, **facts}


def train_row(step: int, **values: Any) -> dict[str, Any]:
    own = {"total_loss": 1.0 / step, "epoch": step / 10, "steps_per_second": 5.0, "time": 1e9 + step}
    return {"version": 1, "run": "a run", "kind": "train", "step": step, **own, **values}


def row(step: int, run_id: str = "r1", **values: Any) -> dict[str, Any]:
    return {"kind": "row", "run_id": run_id, "row": train_row(step, **values)}


def event(name: str, step: int = 5, run_id: str = "r1", **details: Any) -> dict[str, Any]:
    said = {"version": 1, "run": "a run", "kind": "event", "step": step, "time": 1e9, "name": name, **details}
    return {"kind": "row", "run_id": run_id, "row": said}


def status(status: str, run_id: str = "r1", **facts: Any) -> dict[str, Any]:
    return {"kind": "status", "run_id": run_id, "status": status, **facts}


def learner(rank: int, group_id: str = "g1", **facts: Any) -> dict[str, Any]:
    own = {"name": "a run", "generation": 1, "state": "updating", "seconds_in_state": 0.5, "step": 10}
    own |= {"steps_per_second": 20.0, "data_wait_seconds": 0.0, "compute_seconds": 0.0, "collective_seconds": 0.0}
    own |= {"num_rows": 640, "last_error": None, "pid": 100 + rank, "time": 1e9}
    return {"group_id": group_id, "rank": rank, **own, **facts}
