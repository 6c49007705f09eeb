"""Data at rest: datasets, formats, checkpoints. Knows numpy and zarr, neither torch nor distributed."""

from .checkpoints.store import CheckpointStore, load_checkpoint, save_checkpoint
from .dataset import OfflineDataset
from .episode import Episode
from .errors import (
    CheckpointError,
    ConfigError,
    CorruptDataError,
    DaskRLError,
    DatasetError,
    DatasetNotFoundError,
    InvalidDataError,
    LearnerError,
    LearnerLostError,
    NonFiniteGradientError,
    RunStateError,
    SourceFormatError,
    StoreAccessError,
    StoreUnreachableError,
    WaitTimeoutError,
    explain,
)
from .multi_agent_episode import MultiAgentEpisode
from .schema import SCHEMA_VERSION, ArraySpec
from .spaces import describe_space, infer_box, space_from_json, space_to_json, spaces_equal
from .stats import FieldStatistics, column_statistics
from .transforms import Normalize, ScaleReward, n_step_rewards, returns_to_go, transform_from_json
from .verify import VerifyReport
from .writer import DatasetWriter

__all__ = [
    "SCHEMA_VERSION",
    "ArraySpec",
    "CheckpointError",
    "CheckpointStore",
    "ConfigError",
    "CorruptDataError",
    "DaskRLError",
    "DatasetError",
    "DatasetNotFoundError",
    "DatasetWriter",
    "Episode",
    "FieldStatistics",
    "InvalidDataError",
    "LearnerError",
    "LearnerLostError",
    "MultiAgentEpisode",
    "NonFiniteGradientError",
    "Normalize",
    "OfflineDataset",
    "RunStateError",
    "ScaleReward",
    "SourceFormatError",
    "StoreAccessError",
    "StoreUnreachableError",
    "VerifyReport",
    "WaitTimeoutError",
    "column_statistics",
    "describe_space",
    "explain",
    "infer_box",
    "load_checkpoint",
    "n_step_rewards",
    "returns_to_go",
    "save_checkpoint",
    "space_from_json",
    "space_to_json",
    "spaces_equal",
    "transform_from_json",
]
