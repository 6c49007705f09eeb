"""What trackers hold of a run, read back with their own packages; and what its metrics.jsonl holds."""

import numpy as np
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dask_rl.pipeline.runs.loggers.scalars import scalars


def points_of(rows):
    """The points of the rows of metrics.jsonl: {name: [(step, value)]}."""
    points = {}
    for row in rows:
        for name, value in scalars(row).items():
            points.setdefault(name, []).append((row["step"], value))
    return points


def as_float32(points):
    """TensorBoard keeps no more."""
    return {name: [(step, float(np.float32(value))) for step, value in curve] for name, curve in points.items()}


def tensorboard_events(run):
    """All that TensorBoard reads in the folder of a run."""
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    return events.Reload()


def tensorboard_points(run):
    events = tensorboard_events(run)
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def mlflow_runs(uri, experiment):
    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    return [] if found is None else client.search_runs([found.experiment_id], order_by=["attributes.start_time ASC"])


def mlflow_points(uri, run_id):
    client = MlflowClient(tracking_uri=uri)
    histories = {name: client.get_metric_history(run_id, name) for name in client.get_run(run_id).data.metrics}
    return {name: sorted((point.step, point.value) for point in history) for name, history in histories.items()}
