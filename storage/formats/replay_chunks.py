"""Chunks of an array in Zarr v2: all there, whole, and no larger than the array says.

Zarr reads a chunk that is missing as zeros, Blosc decodes what lies behind the end of a cut one, and every codec takes
the memory that the chunk asks for, all without a word.
"""

import bz2
import gzip
import itertools
import lzma
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from dask_rl.storage.errors import SourceFormatError, explain

DAMAGED = "fetch it again: it is damaged or incomplete"
# Those that only turn bytes into bytes or numbers: one that unpickles would run what a file says.
_COMPRESSORS = frozenset({"blosc", "zstd", "lz4", "gzip", "zlib", "bz2", "lzma"})
_FILTERS = frozenset(
    {"delta", "shuffle", "fixedscaleoffset", "astype", "packbits"}
    | {"quantize", "bitround", "crc32", "crc32c", "adler32", "fletcher32"}
)
_TYPES = ("dtype", "astype", "encode_dtype", "decode_dtype")  # of a filter
_MAX_CHUNK_BYTES = 2**30
_FILTER_GROWTH = 8  # from the narrowest type of numbers to the widest
_SLACK_BYTES = 2**12  # headers, checksums
_KEY = re.compile(r"\d+([./]\d+)*")
_PIECE_BYTES = 2**20
_BLOSC_HEADER = 16  # bytes
_ZSTD_HEADER = 18


def check_array(path: Path, name: str, array: Any) -> None:
    """Refuse an array with codecs that could do anything, or whose chunks are missing, cut off or too large.

    Raises:
        SourceFormatError: naming the array, and the chunk.
    """
    origin = f"{path}: {name}"
    _check_codecs(origin, array.metadata)
    num_bytes = math.prod(array.chunks) * array.dtype.itemsize
    if num_bytes > _MAX_CHUNK_BYTES:
        got, allowed = f"chunks of {num_bytes} bytes", f"at most {_MAX_CHUNK_BYTES}"
        raise SourceFormatError(explain(origin, got=got, allowed=allowed, fix="write it again in smaller chunks"))
    limit = num_bytes * _FILTER_GROWTH + _SLACK_BYTES if array.metadata.filters else num_bytes
    with zipfile.ZipFile(path) if path.is_file() else nullcontext() as archive:
        chunks = {chunk.key: chunk for chunk in _chunks(path, name, archive)}
        _check_keys(origin, array, chunks.keys())
        for chunk in chunks.values():
            _check_chunk(f"{origin}: chunk {chunk.key}", chunk, array.metadata.compressor, limit)


@dataclass(frozen=True)
class _Chunk:
    key: str
    num_bytes: int
    open: Callable[[], Any]


def _chunks(path: Path, name: str, archive: zipfile.ZipFile | None) -> Iterator[_Chunk]:
    """Yield what lies beside the metadata of an array under names of chunks."""
    if archive is not None:
        for info in archive.infolist():  # of two with one name, the last one counts
            key = info.filename.removeprefix(f"{name}/")
            if key != info.filename and _KEY.fullmatch(key):
                yield _Chunk(key, info.file_size, partial(archive.open, info))
        return
    for file in (path / name).rglob("[!.]*"):
        key = file.relative_to(path / name).as_posix()
        if _KEY.fullmatch(key) and file.is_file():
            yield _Chunk(key, file.stat().st_size, partial(file.open, "rb"))


def _check_codecs(origin: str, metadata: Any) -> None:
    compressor, filters = metadata.compressor, metadata.filters or ()
    unknown = {compressor.codec_id} - _COMPRESSORS if compressor is not None else set()
    unknown |= {codec.codec_id for codec in filters} - _FILTERS
    # A filter that makes text of numbers can make any length of it.
    configs = [codec.get_config() for codec in filters]
    types = [np.dtype(config[key]) for config in configs for key in _TYPES if config.get(key) is not None]
    if unknown or any(dtype.kind not in "biuf" for dtype in types):
        got = f"codec {min(unknown)}" if unknown else "a filter of other values than numbers"
        allowed = f"compressors {', '.join(sorted(_COMPRESSORS))}; filters {', '.join(sorted(_FILTERS))}, of numbers"
        raise SourceFormatError(explain(origin, got=got, allowed=allowed, fix="write it again with one of these"))


def _check_keys(origin: str, array: Any, found: Collection[str]) -> None:
    separator = array.metadata.dimension_separator
    counts = [-(-rows // chunk) for rows, chunk in zip(array.shape, array.chunks, strict=True)]
    # The product is walked through only if it is no longer than what is there: shapes can be absurd.
    if len(found) == math.prod(counts):
        indices = itertools.product(*(range(count) for count in counts))
        missing = next((key for index in indices if (key := separator.join(map(str, index)) or "0") not in found), None)
        if missing is None:
            return
        got = f"no chunk {missing} beside others that the array does not have"
    else:
        got = f"{len(found)} of {math.prod(counts)} chunks"
    fix = f"{DAMAGED}; if its writer leaves out chunks of zeros, write it with write_empty_chunks=True"
    raise SourceFormatError(explain(origin, got=got, allowed="all chunks", fix=fix))


def _check_chunk(origin: str, chunk: _Chunk, compressor: Any, limit: int) -> None:
    codec = None if compressor is None else compressor.codec_id
    if chunk.num_bytes > 2 * limit + _SLACK_BYTES:  # more than what no codec can make smaller
        raise _too_large(origin, f"{chunk.num_bytes} bytes", limit)
    if codec is None:
        return
    with chunk.open() as file:
        if codec == "blosc":
            header = file.read(_BLOSC_HEADER)
            if len(header) < _BLOSC_HEADER or int.from_bytes(header[12:16], "little") != chunk.num_bytes:
                got, allowed = f"{chunk.num_bytes} bytes", "as many as its header says"
                raise SourceFormatError(explain(origin, got=got, allowed=allowed, fix=DAMAGED))
            decoded = int.from_bytes(header[4:8], "little")
        elif codec == "lz4":
            decoded = int.from_bytes(file.read(4), "little")
        elif codec == "zstd":
            decoded = _zstd_size(file.read(_ZSTD_HEADER), origin)
        else:
            decoded = _count(_decoding(file, codec, compressor), limit)
    if decoded > limit:
        raise _too_large(origin, "more bytes when it is decoded", limit)


def _decoding(file: IO[bytes], codec: str, compressor: Any) -> Iterator[int]:
    """Yield the sizes of pieces of a chunk whose codec does not tell the size beforehand."""
    if codec == "zlib":
        decoder = zlib.decompressobj()
        while rest := decoder.unconsumed_tail or file.read(_PIECE_BYTES):
            yield len(decoder.decompress(rest, _PIECE_BYTES))
        return
    settings = {"format": compressor.format, "filters": compressor.filters} if codec == "lzma" else {}
    openers: dict[str, Any] = {"gzip": gzip.open, "bz2": bz2.open, "lzma": lzma.open}
    with openers[codec](file, **settings) as opened:
        while piece := opened.read(_PIECE_BYTES):
            yield len(piece)


def _count(sizes: Iterator[int], limit: int) -> int:
    """Return the sum of sizes, or that of the first ones that exceed the limit."""
    total = 0
    for size in sizes:
        total += size
        if total > limit:
            break
    return total


def _zstd_size(header: bytes, origin: str) -> int:
    """Return the size of the content that a frame of Zstandard declares (RFC 8878, 3.1.1.1)."""
    descriptor = header[4] if len(header) > 4 else 0
    single = descriptor >> 5 & 1
    width = (single, 2, 4, 8)[descriptor >> 6]
    start = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
    if not width or len(header) < start + width:
        got, fix = "a frame of zstd that does not tell its size", "write it again with Blosc"
        raise SourceFormatError(explain(origin, got=got, allowed="one that does", fix=fix))
    return int.from_bytes(header[start : start + width], "little") + 256 * (width == 2)


def _too_large(origin: str, got: str, limit: int) -> SourceFormatError:
    return SourceFormatError(explain(origin, got=got, allowed=f"{limit} bytes, as the array says", fix=DAMAGED))
