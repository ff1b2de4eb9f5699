"""Pictures for tests, made as they are needed."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from roll.configs.tables.sight import PictureSizes
from roll.types.media import PictureSource

SAME = PictureSizes(1, 1, 10**9)
"""Sizes that change nothing."""
QWEN = PictureSizes(28, 3136, 12544)


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth random colours: no format changes them much."""
    small = np.random.default_rng(seed).integers(0, 256, (2, 2, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BILINEAR))


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def png(height: int = 56, width: int = 84, seed: int = 0) -> bytes:
    return encoded(Image.fromarray(pixels(height, width, seed)))


def at(path: Path, contents: bytes) -> PictureSource:
    path.write_bytes(contents)
    return PictureSource("file", str(path), "rows.jsonl:17, column images[1]")


def bomb(side: int = 20_000) -> bytes:
    """A PNG file of few bytes that says it has side x side pixels, and has them: rows of zeros."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(1 + (side + 7) // 8)) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
