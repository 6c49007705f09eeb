"""The head of a checkpoint, metadata.json, and whether the files beside it are those that it lists."""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dask_rl.storage.errors import CheckpointError, explain

from .component_bytes import MAX_JSON_BYTES, decode_values, short
from .component_tree import ROOT, array_file, check_component, value_file

FORMAT = "dask-rl checkpoint"
FORMAT_VERSION = 1
METADATA_FILE = "metadata.json"
USE_ANOTHER = "use another checkpoint"
_MAX_SHOWN = 200  # characters of a stranger's name


def read_header(root: Path) -> dict[str, Any]:
    """Return metadata.json of a checkpoint whose files are exactly those it lists, each with its size.

    Everything in it may come from a stranger: names are derived from checked component paths, never followed.
    """
    found = _list_files(root)
    if METADATA_FILE not in found:
        raise CheckpointError(explain(str(root), got=f"no {METADATA_FILE}", allowed="a checkpoint", fix=USE_ANOTHER))
    name = str(root / METADATA_FILE)
    if (size := found.pop(METADATA_FILE)) > MAX_JSON_BYTES:
        got, allowed = f"{size} bytes", f"at most {MAX_JSON_BYTES}"
        raise CheckpointError(explain(name, got=got, allowed=allowed, fix=USE_ANOTHER))
    header = decode_values(read_file(root / METADATA_FILE), name)
    if header.get("format") != FORMAT or header.get("format_version") != FORMAT_VERSION:
        got = f"format {short(header.get('format'))} version {short(header.get('format_version'))}"
        raise CheckpointError(explain(name, got=got, allowed=f"{FORMAT} version {FORMAT_VERSION}", fix=USE_ANOTHER))
    if header.get("checksum") != checksum(header):
        raise CheckpointError(explain(name, got="a checksum mismatch", fix=f"it was changed: {USE_ANOTHER}"))
    _check_header(header, name)
    known = {file for part in header["components"] for file in (array_file(part), value_file(part))}
    for file in sorted(found.keys() | header["files"].keys()):
        size = header["files"].get(file, {}).get("size")
        if file not in known or size is None or found.get(file) != size:
            got = f"{found[file]} bytes" if file in found else "no such file"
            wanted = f"{size} bytes" if file in known and size is not None else "only files of listed components"
            raise CheckpointError(explain(str(root / file[:_MAX_SHOWN]), got=got, allowed=wanted, fix=USE_ANOTHER))
    return header


def _check_header(header: Mapping[str, Any], name: str) -> None:
    """Check the types in metadata.json, so that what follows may rely on them."""
    components, files = header.get("components"), header.get("files")
    fits = (
        isinstance(components, list)
        and all(isinstance(part, str) for part in components)
        and ROOT in components
        and len(set(components)) == len(components)
        and isinstance(files, dict)
        and all(isinstance(entry, dict) and isinstance(entry.get("size"), int) for entry in files.values())
        and isinstance(header.get("metadata"), dict)
    )
    if not fits:
        raise CheckpointError(
            explain(name, got="a malformed header", allowed="components, files, metadata", fix=USE_ANOTHER)
        )
    for part in header["components"]:
        if part != ROOT:
            check_component(part)


def _list_files(root: Path) -> dict[str, int]:
    """Return {relative name: size} of the regular files below `root`; links and devices are refused."""
    if not os.path.isdir(root):
        raise CheckpointError(explain(str(root), got="no such directory", allowed="a checkpoint", fix="check the path"))
    found: dict[str, int] = {}
    pending = [root]
    while pending:
        for entry in _entries(pending.pop()):
            status = entry.lstat()
            if stat.S_ISDIR(status.st_mode):
                pending.append(entry)
            elif stat.S_ISREG(status.st_mode):
                found[entry.relative_to(root).as_posix()] = status.st_size
            else:
                raise CheckpointError(
                    explain(str(entry), got="a link or device", allowed="regular files only", fix=USE_ANOTHER)
                )
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise _not_readable(folder, error) from None


def read_file(path: Path) -> bytes:
    """Return the bytes of one of its files; what the operating system refuses raises CheckpointError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise _not_readable(path, error) from None


def _not_readable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(explain(str(path), got=error.strerror or str(error), fix="check the path and its rights"))


def sha256(data: bytes) -> str:
    """Return the digest as text."""
    return hashlib.sha256(data).hexdigest()


def checksum(header: Mapping[str, Any]) -> str:
    """Return that of metadata.json itself."""
    body = {key: value for key, value in header.items() if key != "checksum"}
    return sha256(json.dumps(body, sort_keys=True).encode())
