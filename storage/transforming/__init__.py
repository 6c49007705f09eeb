"""Datasets in, a dataset out: choose episodes, change rewards and fields, merge, split, cut into other shards."""

from .config import TransformConfig
from .driver import transform_datasets
from .summary import TransformSummary

__all__ = ["TransformConfig", "TransformSummary", "transform_datasets"]
