"""Offline reinforcement learning on Dask: Zarr datasets in, trained policies out.

Names are loaded when they are first used: `import dask_rl` alone stays fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_rl.learners.algorithm import Algorithm, AlgorithmConfig, OptimizerSpec
    from dask_rl.learners.algorithms.registry import register_algorithm
    from dask_rl.learners.config import LearnerGroupConfig, LearnersConfig
    from dask_rl.learners.group import LearnerGroup
    from dask_rl.learners.module import MultiRLModuleSpec, RLModule, RLModuleSpec, register_module
    from dask_rl.learners.policy import Policy
    from dask_rl.pipeline.dashboard import install_dashboard
    from dask_rl.pipeline.datasets.imports import import_dataset
    from dask_rl.pipeline.datasets.transforming import transform_dataset
    from dask_rl.pipeline.rollouts.collect import CollectConfig, collect
    from dask_rl.pipeline.rollouts.evaluate import EvaluationConfig, evaluate
    from dask_rl.pipeline.runs.job import TrainJob, load_job
    from dask_rl.pipeline.runs.live.attach import attach
    from dask_rl.pipeline.runs.live.live_run import LiveRun
    from dask_rl.pipeline.runs.train import train
    from dask_rl.pipeline.runs.trained_policy import load_policy
    from dask_rl.storage.dataset import OfflineDataset
    from dask_rl.storage.episode import Episode
    from dask_rl.storage.errors import DaskRLError
    from dask_rl.storage.exports import export_dataset
    from dask_rl.storage.formats import ImportOptions, import_arrays, import_frame
    from dask_rl.storage.multi_agent_episode import MultiAgentEpisode
    from dask_rl.storage.recorder import EpisodeRecorder
    from dask_rl.storage.transforming import TransformConfig
    from dask_rl.storage.writer import DatasetWriter

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "AlgorithmConfig",
    "CollectConfig",
    "DaskRLError",
    "DatasetWriter",
    "Episode",
    "EpisodeRecorder",
    "EvaluationConfig",
    "ImportOptions",
    "LearnerGroup",
    "LearnerGroupConfig",
    "LearnersConfig",
    "LiveRun",
    "MultiAgentEpisode",
    "MultiRLModuleSpec",
    "OfflineDataset",
    "OptimizerSpec",
    "Policy",
    "RLModule",
    "RLModuleSpec",
    "TrainJob",
    "TransformConfig",
    "__version__",
    "attach",
    "collect",
    "evaluate",
    "export_dataset",
    "import_arrays",
    "import_dataset",
    "import_frame",
    "install_dashboard",
    "load_job",
    "load_policy",
    "register_algorithm",
    "register_module",
    "train",
    "transform_dataset",
]

_HOMES = {
    "Algorithm": "learners.algorithm",
    "AlgorithmConfig": "learners.algorithm",
    "CollectConfig": "pipeline.rollouts.collect",
    "DaskRLError": "storage.errors",
    "DatasetWriter": "storage.writer",
    "Episode": "storage.episode",
    "EpisodeRecorder": "storage.recorder",
    "EvaluationConfig": "pipeline.rollouts.evaluate",
    "ImportOptions": "storage.formats",
    "LearnerGroup": "learners.group",
    "LearnerGroupConfig": "learners.config",
    "LearnersConfig": "learners.config",
    "LiveRun": "pipeline.runs.live.live_run",
    "MultiAgentEpisode": "storage.multi_agent_episode",
    "MultiRLModuleSpec": "learners.module",
    "OfflineDataset": "storage.dataset",
    "OptimizerSpec": "learners.algorithm",
    "Policy": "learners.policy",
    "RLModule": "learners.module",
    "RLModuleSpec": "learners.module",
    "TrainJob": "pipeline.runs.job",
    "attach": "pipeline.runs.live.attach",
    "collect": "pipeline.rollouts.collect",
    "evaluate": "pipeline.rollouts.evaluate",
    "TransformConfig": "storage.transforming",
    "export_dataset": "storage.exports",
    "import_arrays": "storage.formats",
    "import_dataset": "pipeline.datasets.imports",
    "import_frame": "storage.formats",
    "install_dashboard": "pipeline.dashboard",
    "load_job": "pipeline.runs.job",
    "load_policy": "pipeline.runs.trained_policy",
    "register_algorithm": "learners.algorithms.registry",
    "register_module": "learners.module",
    "train": "pipeline.runs.train",
    "transform_dataset": "pipeline.datasets.transforming",
}


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"dask_rl.{home}"), name)
    return value


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted(__all__)
