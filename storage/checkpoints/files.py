"""Checkpoints: a directory each, committed by one rename, checked against sha256 on loading, free of pickle.

CHECKPOINT/metadata.json     format, class name, constructor arguments, component tree, {file: size, sha256}
           state.json        values at the root of the state       state.safetensors   arrays at the root
           state/a/b.json, state/a/b.safetensors                   those of component a/b
"""

import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from dask_rl.storage.errors import CheckpointError, explain
from dask_rl.storage.files import exchange, fsync_path, replace_file, write_synced

from .component_bytes import decode_arrays, decode_values, encode_arrays, encode_values
from .component_tree import ROOT, Component, array_file, assemble, flatten, to_json_value, value_file
from .header import (
    FORMAT,
    FORMAT_VERSION,
    METADATA_FILE,
    USE_ANOTHER,
    checksum,
    read_file,
    read_header,
    sha256,
)

_HEADER_KEYS = ("class_name", "constructor")  # of the caller's metadata: shown at the top of the file


def save_checkpoint(path: str | os.PathLike[str], state: Mapping[str, Any], metadata: Mapping[str, Any]) -> Path:
    """Write `state` to the directory `path`, which appears whole or not at all.

    Args:
        path: the checkpoint; one that is already there is replaced. Of a process that is killed in between, the old
            one lies beside it as `.NAME.….old.tmp`: a run saves each step under a name of its own.
        state: nested dicts with str keys; leaves are numpy arrays or JSON values. Each dict is a component.
        metadata: JSON values, e.g. `class_name` and `constructor`; `load_checkpoint` returns it.

    Raises:
        CheckpointError: something in the state cannot be stored, or the place cannot be written to.
    """
    target = Path(os.path.abspath(path))
    if target.exists() and not _replaceable(target):
        raise CheckpointError(
            explain(
                str(target),
                got="something that is no checkpoint",
                allowed="a new path",
                fix="choose another path",
            )
        )
    files, components = _encode(state)
    described = to_json_value(dict(metadata), "metadata")
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **{key: described.pop(key) for key in _HEADER_KEYS if key in described},
        "components": components,
        "files": {name: {"size": len(data), "sha256": sha256(data)} for name, data in files.items()},
        "metadata": described,
    }
    header["checksum"] = checksum(header)
    encoded = encode_values(header, METADATA_FILE)
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex}.tmp"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write_directory(temporary, {**files, METADATA_FILE: encoded})
            _replace_directory(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise not_writable(target, error) from error
    return target


def load_checkpoint(
    path: str | os.PathLike[str], component: str | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (state, metadata) of the checkpoint at `path`, every byte of it checked.

    Args:
        path: a checkpoint directory.
        component: the path of one part, e.g. 'learner/rl_module/p0'; only that part is read and returned.

    Raises:
        CheckpointError: missing, foreign, damaged or hostile; the message names the file.
    """
    root = Path(path)
    header = read_header(root)
    wanted = header["components"]
    if component is not None:
        wanted = [name for name in wanted if name == component or name.startswith(f"{component}/")]
        if component not in wanted:
            known = ", ".join(name for name in header["components"] if name)
            raise CheckpointError(
                explain(
                    f"component of {root}",
                    got=repr(component),
                    allowed=known or "none",
                    fix="name one of these",
                )
            )
    _check_room(root, wanted, header["files"])
    loaded = {name: _read_component(root, name, header["files"]) for name in wanted}
    return assemble(loaded, component or ROOT), _caller_metadata(header)


def load_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the metadata of the checkpoint at `path` without reading its state.

    Raises:
        CheckpointError: missing or foreign.
    """
    return _caller_metadata(read_header(Path(path)))


def change_metadata(path: Path, changes: Mapping[str, Any], temporary: Path) -> None:
    """Change the metadata of the checkpoint at `path` in one step; its state is neither read nor written.

    Args:
        path: the checkpoint.
        changes: JSON values; what is there under other names stays.
        temporary: a name in the same file system, outside the checkpoint.

    Raises:
        CheckpointError: missing, foreign, or the place cannot be written to.
    """
    header = read_header(path)
    header["metadata"] |= to_json_value(dict(changes), "metadata")
    header["checksum"] = checksum(header)
    try:
        replace_file(path / METADATA_FILE, encode_values(header, METADATA_FILE), temporary)
    except OSError as error:
        raise not_writable(path, error) from error


def _encode(state: Mapping[str, Any]) -> tuple[dict[str, bytes], list[str]]:
    """Return {relative file name: bytes} and the component paths of a state."""
    files: dict[str, bytes] = {}
    components = flatten(state)
    for name, component in components.items():
        if component.arrays:
            files[array_file(name)] = encode_arrays(component.arrays)
        if component.values:
            files[value_file(name)] = encode_values(component.values, value_file(name))
    return files, list(components)


def _write_directory(directory: Path, files: Mapping[str, bytes]) -> None:
    directory.mkdir()
    folders = {directory}
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        folders.update(parent for parent in path.parents if parent.is_relative_to(directory))
        write_synced(path, data)
    for folder in folders:
        fsync_path(folder)


def _replace_directory(temporary: Path, target: Path) -> None:
    """Put `temporary` in the place of `target`; a directory that is there goes, where possible in the same step."""
    if target.exists() and exchange(temporary, target):
        fsync_path(target.parent)
        return  # what has the name `temporary` now is removed with it
    aside = None
    if target.exists():
        aside = temporary.with_name(f".{target.name}.{uuid.uuid4().hex}.old.tmp")
        os.rename(target, aside)
    try:
        os.rename(temporary, target)
    except OSError:
        if aside is not None:
            os.rename(aside, target)
        raise
    fsync_path(target.parent)
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)


def not_writable(path: Path, error: OSError) -> CheckpointError:
    """Return the error for what the operating system refuses to write."""
    fix = "choose a place that can be written to, with room"
    return CheckpointError(explain(str(path), got=error.strerror or str(error), fix=fix))


def _check_room(root: Path, components: Iterable[str], files: Mapping[str, Any]) -> None:
    """Refuse what memory cannot hold: a file with holes may claim any size."""
    names = (file for part in components for file in (array_file(part), value_file(part)))
    sizes = [files[name]["size"] for name in names if name in files]
    needed, available = sum(sizes) + 2 * max(sizes, default=0), psutil.virtual_memory().available
    if needed > available:
        got, allowed = f"{sum(sizes)} bytes to load", f"{available} bytes of memory, in which {needed} are needed"
        raise CheckpointError(explain(str(root), got=got, allowed=allowed, fix="load it where there is room"))


def _read_component(root: Path, component: str, files: Mapping[str, Any]) -> Component:
    arrays, values = array_file(component), value_file(component)
    return Component(
        decode_arrays(_read_checked(root / arrays, files[arrays]), str(root / arrays)) if arrays in files else {},
        decode_values(_read_checked(root / values, files[values]), str(root / values)) if values in files else {},
    )


def _read_checked(path: Path, entry: Mapping[str, Any]) -> bytes:
    data = read_file(path)
    if sha256(data) != entry.get("sha256"):
        raise CheckpointError(explain(str(path), got="a sha256 mismatch", fix=f"the file is damaged: {USE_ANOTHER}"))
    return data


def _caller_metadata(header: Mapping[str, Any]) -> dict[str, Any]:
    return {**{key: header[key] for key in _HEADER_KEYS if key in header}, **header["metadata"]}


def _replaceable(path: Path) -> bool:
    return path.is_dir() and ((path / METADATA_FILE).is_file() or not any(path.iterdir()))
