"""The checkpoints of one run: which is the latest, which is the best, which are kept."""

import math
import os
import re
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dask_rl.storage.errors import CheckpointError, explain
from dask_rl.storage.files import replace_file

from .files import change_metadata, load_checkpoint, load_metadata, not_writable, save_checkpoint
from .header import METADATA_FILE

__all__ = ["CheckpointStore", "load_checkpoint", "load_metadata", "save_checkpoint"]

_LATEST_FILE = "latest"
_SCORE_FILE = ".score.tmp"  # a new metadata.json; one that a killed process leaves is written over
_MAX_NAME_BYTES = 255
_STEP_NAME = re.compile(r"step-(\d{12,})")


class CheckpointStore:
    """The checkpoints of one run: `step-…` directories and the small file `latest`. One writer at a time.

    Args:
        directory: created at the first `save`.
        keep_last: how many of the newest to keep, at least 1.
        keep_best: whether to keep, besides those, the one with the highest score.
    """

    def __init__(self, directory: str | os.PathLike[str], keep_last: int = 2, keep_best: bool = True) -> None:
        if keep_last < 1:
            raise CheckpointError(explain("keep_last", got=keep_last, allowed="at least 1", fix="set it to 1"))
        self.directory = Path(directory)
        self.keep_last = keep_last
        self.keep_best = keep_best

    def save(
        self, step: int, state: Mapping[str, Any], metadata: Mapping[str, Any], score: float | None = None
    ) -> Path:
        """Write the checkpoint of `step`, point `latest` to it, then remove those that are not kept.

        Raises:
            CheckpointError: see `save_checkpoint`.
        """
        if step < 0:
            raise CheckpointError(explain("step", got=step, allowed="at least 0", fix="count steps from 0"))
        for leftover in self._leftovers():
            shutil.rmtree(leftover, ignore_errors=True)
        path = save_checkpoint(self._path(step), state, {**metadata, "step": int(step), "score": _known(score)})
        try:
            replace_file(self.directory / _LATEST_FILE, path.name.encode(), self.directory / f".{_LATEST_FILE}.tmp")
            self._prune(protected=path.name)
        except OSError as error:
            raise not_writable(self.directory, error) from error
        return path

    def set_score(self, step: int, score: float) -> None:
        """Give the checkpoint of `step` its score, then remove those that are not kept.

        One small file is replaced, not the checkpoint: it may be the only one, and the process may be killed.

        Raises:
            CheckpointError: there is no such checkpoint, or the place cannot be written to.
        """
        path = self._path(step)
        change_metadata(path, {"score": _known(score)}, self.directory / _SCORE_FILE)
        latest = self.latest() or path
        self._prune(protected=latest.name)

    def checkpoints(self) -> dict[int, Path]:
        """Return the complete checkpoints by step, in rising order."""
        if not self.directory.is_dir():
            return {}
        found = {
            int(match[1]): entry
            for entry in self.directory.iterdir()
            # a link leads out of the run: nothing there is ours to load, and least of all to remove
            if (match := _STEP_NAME.fullmatch(entry.name))
            and not entry.is_symlink()
            and (entry / METADATA_FILE).is_file()
        }
        return dict(sorted(found.items()))

    def latest(self) -> Path | None:
        """Return the checkpoint that was saved last, or None."""
        known = self.checkpoints()
        name = _read_name(self.directory / _LATEST_FILE)
        # a process killed between two renames leaves `latest` behind or ahead: then the highest step counts
        return next((path for path in known.values() if path.name == name), None) or next(
            reversed(known.values()), None
        )

    def best(self) -> Path | None:
        """Return the checkpoint with the highest score, the later of equals; None if none has a score."""
        scored = [
            (score, step, path) for step, path in self.checkpoints().items() if (score := _score(path)) is not None
        ]
        return max(scored)[2] if scored else None

    def load(
        self, path: str | os.PathLike[str] | None = None, component: str | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (state, metadata) of the checkpoint at `path`, by default the latest.

        Args:
            path: the checkpoint.
            component: the path of one part; only that part is read and returned.

        Raises:
            CheckpointError: there is none, or it is damaged.
        """
        chosen = self.latest() if path is None else Path(path)
        if chosen is None:
            raise CheckpointError(explain(str(self.directory), got="no checkpoint", fix="save one first"))
        try:
            return load_checkpoint(chosen, component)
        except CheckpointError as error:
            if path is not None:
                raise
            got, fix = str(error).rstrip("."), f"remove {chosen} to go on from the one before it, or from the start"
            raise CheckpointError(explain("latest checkpoint", got=got, fix=fix)) from None

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:012d}"

    def _leftovers(self) -> list[Path]:
        """Return what a killed process left: checkpoints half written, and half removed."""
        steps = [path for path in self.directory.glob("step-*") if _STEP_NAME.fullmatch(path.name)]
        return [*self.directory.glob(".step-*.tmp"), *(path for path in steps if not (path / METADATA_FILE).exists())]

    def _prune(self, protected: str) -> None:
        known = list(self.checkpoints().values())
        kept = {protected, *(path.name for path in known[-self.keep_last :])}
        if self.keep_best and (best := self.best()) is not None:
            kept.add(best.name)
        for path in known:
            if path.name not in kept:
                # metadata first: a half-removed checkpoint must not look like a complete one
                (path / METADATA_FILE).unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)


def _read_name(path: Path) -> str:
    """Return what a small text file says, "" for anything else: reading a pipe would never end."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_NAME_BYTES:
            return ""
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _known(score: float | None) -> float | None:
    return float(score) if score is not None and math.isfinite(score) else None


def _score(path: Path) -> float | None:
    try:
        score = load_metadata(path).get("score")
    except CheckpointError:
        return None  # an old checkpoint that went bad must not stop the run that saves a new one
    return score if isinstance(score, float) and math.isfinite(score) else None
