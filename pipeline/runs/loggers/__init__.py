"""Trackers to which a run's rows are told besides metrics.jsonl: TensorBoard and MLflow, each an optional extra."""
