"""Images that Minari stores encoded, as JPEG, which is lossy."""

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

from dask_rl.storage.errors import SourceFormatError, explain

from .base import Array, Space

NOTE = "images are stored encoded, by Minari as JPEG, which is lossy: they are what was decoded"


def may_be_encoded(space: Space) -> bool:
    """Whether Minari could have stored the values of a space as encoded images."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)


def decode_images(frames: Iterable[Any], origin: str) -> Array:
    """Return the images, (rows, height, width[, channels]).

    Args:
        frames: each the bytes of a file, or an array of them.
        origin: where they lie, for messages.

    Raises:
        SourceFormatError: one is damaged, or their sizes differ.
    """
    from PIL import Image

    try:
        return np.stack([np.asarray(Image.open(io.BytesIO(bytes(frame)))) for frame in frames])
    except (OSError, ValueError, TypeError, SyntaxError, Image.DecompressionBombError) as error:
        reason, fix = " ".join(str(error).split())[:120], "fetch the dataset again"
        raise SourceFormatError(
            explain(origin, got=f"unreadable images ({reason})", allowed="JPEG or PNG of one size", fix=fix)
        ) from error
