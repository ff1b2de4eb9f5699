"""Geometry3K: messages with pictures, ground_truth, tag; the pictures as files beside them.

    python examples/data/prepare_geometry3k.py train-00000-of-00001.parquet                   # of hiyouga/geometry3k

A row has `images` (bytes), a `problem` with `<image>` where one belongs, and an `answer`. Models that see
pictures train on these rows as they are.
"""

import hashlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from preparing import BOXED, BadRow, Row, main, text

SIGNATURES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"RIFF": "webp"}


def convert(values: Mapping[str, Any], out: Path) -> Row:
    pictures = [picture["bytes"] for picture in values["images"]]
    problem = text(values, "problem")
    if problem.count("<image>") not in (0, len(pictures)):
        raise BadRow(f"`problem` names {problem.count('<image>')} pictures, and there are {len(pictures)}")
    names = iter([_written(picture, out / "images") for picture in pictures])
    parts: list[dict[str, str]] = []
    for piece in re.split("(<image>)", problem if "<image>" in problem else "<image>" * len(pictures) + problem):
        if piece == "<image>":
            parts.append({"type": "image", "image": f"images/{next(names)}"})
        elif piece.strip():
            parts.append({"type": "text", "text": piece.strip()})
    parts.append({"type": "text", "text": BOXED})
    messages = [{"role": "user", "content": parts}]
    return {"messages": messages, "ground_truth": text(values, "answer"), "tag": "geometry3k"}


def _written(picture: object, folder: Path) -> str:
    """The name of the picture's file, which says what is in it. Paths of rows begin in the folder of their file."""
    if not isinstance(picture, bytes):
        raise BadRow("`images` hold no bytes")
    ending = next((ending for start, ending in SIGNATURES.items() if picture.startswith(start)), None)
    if ending is None:
        raise BadRow("`images` hold no PNG, JPEG or WebP")
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{hashlib.sha256(picture).hexdigest()[:16]}.{ending}"
    (folder / name).write_bytes(picture)
    return name


if __name__ == "__main__":
    sys.exit(main(__doc__, "geometry3k", convert))
