"""Images that Minari stores encoded, as JPEG, which is lossy."""

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

from dask_rl.storage.errors import SourceFormatError, explain

from .base import Array, Space
from .unreadable import NONSENSE

NOTE = "images are stored encoded, by Minari as JPEG, which is lossy: they are what was decoded"

_MODES = {(): "L", (1,): "L", (2,): "LA", (3,): "RGB", (4,): "RGBA"}  # Pillow's, by the axis of channels


def may_be_encoded(space: Space) -> bool:
    """Whether Minari could have stored the values of a space as encoded images."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)


def decode_images(frames: Iterable[Any], space: Space, origin: str) -> Array:
    """Return the images, (rows, height, width[, channels]).

    Args:
        frames: each the bytes of a file, or an array of them.
        space: of one image.
        origin: where they lie, for messages.

    Raises:
        SourceFormatError: one is damaged, or not what the space says: that one is not decoded.
    """
    from PIL import Image

    height, width, *channels = space.shape or (0, 0)
    mode = _MODES.get(tuple(channels))
    rows: list[Array] = []
    try:
        for frame in frames:
            # Of the other formats that Pillow knows some run programs on the file's content.
            with Image.open(io.BytesIO(bytes(frame)), formats=("JPEG", "PNG")) as image:
                if (image.size, image.mode) != ((width, height), mode):
                    raise ValueError(f"{image.mode} of {image.size}, not {mode} of {(width, height)}")
                rows.append(np.asarray(image).reshape(space.shape or ()))
        return np.stack(rows)
    except (*NONSENSE, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        reason, fix = " ".join(str(error).split())[:120], "fetch the dataset again"
        raise SourceFormatError(
            explain(origin, got=f"unreadable images ({reason})", allowed="JPEG or PNG as the space says", fix=fix)
        ) from error
