"""What `dask-rl train` left in the directory of a run. Others may have changed it since: it is checked before use."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from dask_rl.pipeline.runs.run_directory import RunDirectory, damaged
from dask_rl.storage.errors import RunStateError

_CHECKED = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class Evaluation(BaseModel):
    """The last evaluation of a run."""

    model_config = _CHECKED

    environment: str | None = None
    return_mean: float | None = None
    return_standard_error: float | None = None
    num_episodes: int | None = None


class RunResult(BaseModel):
    """Of result.json what is kept and compared."""

    model_config = _CHECKED

    evaluation: Evaluation | None = None
    weights_hash: str | None = None


class _Dataset(BaseModel):
    model_config = _CHECKED

    path: str = ""
    content_hash: str = ""


class _Datasets(_Dataset):
    modules: Mapping[str, _Dataset] | None = None


def load_result(run: Path) -> RunResult:
    """Return the result of a run; an empty one where it has none.

    Raises:
        RunStateError: the file holds something else.
        OSError: it cannot be read.
    """
    file = RunDirectory(run).result_file
    try:
        return RunResult.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return RunResult()
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise damaged(file, f"something else ({place}: {problem['msg']})" if place else "something else") from None


def dataset_hashes(run: Path) -> dict[str, str]:
    """Return the content hash of each dataset that a run learned from, by path; empty where that is not known."""
    try:
        rows = RunDirectory(run).rows("dataset")
        facts = _Datasets.model_validate(rows[-1]) if rows else _Datasets()
    except (OSError, RunStateError, ValidationError):
        return {}
    found = [facts] if facts.modules is None else facts.modules.values()
    return {one.path: one.content_hash for one in found if one.content_hash}
