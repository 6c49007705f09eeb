"""A run of MLflow for a run of ours: its settings as parameters, its curves and evaluations as metrics."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from dask_rl.learners.config import Seconds
from dask_rl.pipeline.runs.run_directory import RunDirectory, write_atomic
from dask_rl.pipeline.runs.run_log import Row
from dask_rl.storage.errors import ConfigError, explain

from .scalars import scalars

if TYPE_CHECKING:
    from mlflow import MlflowClient

_STATE_FILE = "mlflow.json"
_BATCH_OF_METRICS, _BATCH_OF_PARAMS = 1000, 100
"""The most that MLflow takes in one request."""
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")


class MLflowConfig(BaseModel):
    """A run of the same name in an experiment of MLflow."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    name: Literal["mlflow"] = "mlflow"
    """Which logger."""
    tracking_uri: str | None = Field(None, min_length=1)
    """Server or database, as http://host:5000 or sqlite:///mlflow.db; default: MLflow's own, $MLFLOW_TRACKING_URI."""
    experiment: str = Field("dask-rl", min_length=1)
    """Experiment that the run belongs to; made where it is missing."""
    timeout_seconds: Seconds = 30
    """Bound on the wait for the tracker when the run ends."""

    @field_validator("tracking_uri")
    @classmethod
    def _holds_no_password(cls, value: str | None) -> str | None:
        if value is not None and urlsplit(value).password is not None:
            fix = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
            raise ConfigError(
                explain("tracking_uri", got="a password, which the run's files would tell", allowed="none", fix=fix)
            )
        return value


class MLflowLogger:
    """Tells a run's rows to MLflow, each once; blocks as long as the tracker takes.

    A run that is resumed goes on as the same run of MLflow, whose id is kept in `RUN/mlflow.json`, and what the
    tracker has missed comes then. MLflow takes no point back: those that a killed run had told beyond its last
    checkpoint stay, and the same steps, which give the same losses, are not told again.
    """

    name = "mlflow"

    def __init__(self, config: MLflowConfig, run: RunDirectory, settings: Mapping[str, Any]) -> None:
        """Ask nothing of the tracker yet.

        Args:
            config: which tracker.
            run: gives the name; remembers the id.
            settings: the job, flat.
        """
        self._config = config
        self._run = run
        self._settings = settings
        self._client: MlflowClient | None = None
        self._id = ""
        self._is_new = True
        self._told: dict[str, set[int]] = {}

    def begin(self, rows: Sequence[Row]) -> None:
        """Take up the run at the tracker, or start one there; tell it the rows that it lacks."""
        client = self._connect()
        found = self._find(client)
        self._told = {}
        if any(scalars(row) for row in rows) and found is not None:
            self._id, self._is_new = found, False
            client.update_run(self._id, status="RUNNING")
        else:
            if found is not None:  # it had told of steps that are void, and the job may be another by now
                client.set_terminated(found, "KILLED")
            self._id, self._is_new = self._create(client), True
        for row in rows:
            self.log(row)

    def log(self, row: Row) -> None:
        """Tell the numbers of a row, unless the tracker has them."""
        client = self._connect()
        if row["kind"] == "dataset" and "content_hash" in row:
            client.set_tag(self._id, "dask_rl.content_hash", row["content_hash"])
        values = scalars(row)
        if not values:
            return
        steps = self._steps_told(client, _name(max(values)))  # what is told last of a row tells whether it is there
        if row["step"] in steps:
            return
        from mlflow.entities import Metric

        milliseconds = round(row["time"] * 1000)
        metrics = [Metric(_name(name), value, milliseconds, row["step"]) for name, value in sorted(values.items())]
        for batch in _batches(metrics, _BATCH_OF_METRICS):
            client.log_batch(self._id, metrics=batch)
        steps.add(row["step"])

    def close(self) -> None:
        """End the run at the tracker: finished, or killed where it can go on."""
        if self._client is not None:
            self._client.set_terminated(self._id, "FINISHED" if self._run.is_complete else "KILLED")

    def _connect(self) -> "MlflowClient":
        if self._client is None:
            # MLflow reports its use to its makers unless it is told not to; that is for the user to switch on.
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
            from mlflow import MlflowClient

            self._client = MlflowClient(tracking_uri=self._config.tracking_uri)
        return self._client

    def _find(self, client: "MlflowClient") -> str | None:
        """Return the id of this run at the tracker, where an earlier start told this tracker of it."""
        from mlflow.exceptions import MlflowException

        try:
            state = json.loads((self._run.path / _STATE_FILE).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(state, dict) or state != self._state(client, str(state.get("run_id"))):
            return None
        try:
            info = client.get_run(state["run_id"]).info
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return state["run_id"] if info.lifecycle_stage == "active" else None

    def _create(self, client: "MlflowClient") -> str:
        name = self._config.experiment
        experiment = client.get_experiment_by_name(name)
        experiment_id = client.create_experiment(name) if experiment is None else experiment.experiment_id
        tags = {"dask_rl.run": str(self._run.path.resolve())}
        run = client.create_run(experiment_id, run_name=self._run.name, tags=tags)
        run_id = str(run.info.run_id)
        write_atomic(self._run.path / _STATE_FILE, json.dumps(self._state(client, run_id)))
        from mlflow.entities import Param

        params = [Param(_name(name), str(value)) for name, value in self._settings.items()]
        for batch in _batches(params, _BATCH_OF_PARAMS):
            client.log_batch(run_id, params=batch)
        return run_id

    def _state(self, client: "MlflowClient", run_id: str) -> dict[str, str]:
        return {"tracking_uri": client.tracking_uri, "experiment": self._config.experiment, "run_id": run_id}

    def _steps_told(self, client: "MlflowClient", name: str) -> set[int]:
        if name not in self._told:
            history = [] if self._is_new else client.get_metric_history(self._id, name)
            self._told[name] = {metric.step for metric in history}
        return self._told[name]


def _name(name: str) -> str:
    """Return the name with letters that MLflow takes."""
    return _NOT_IN_NAMES.sub("_", name)


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
