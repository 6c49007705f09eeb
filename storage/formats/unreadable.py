"""What libraries raise on bytes that make no sense, absurd sizes and types among them."""

import struct
import zipfile
import zlib
from lzma import LZMAError

NONSENSE = (
    *(OSError, EOFError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(MemoryError, SyntaxError, AssertionError),  # NumPy parses the names of types as Python
    *(struct.error, zlib.error, LZMAError, zipfile.BadZipFile),
)
