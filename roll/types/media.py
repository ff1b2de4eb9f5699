"""What a row shows to a model beside its tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Image:
    """A picture as it was given: each model's own processor makes patches of it."""

    pixels: np.ndarray  # uint8 [height, width, 3]

    def __post_init__(self) -> None:
        shape = self.pixels.shape
        if self.pixels.dtype != np.uint8 or len(shape) != 3 or shape[2] != 3 or 0 in shape:
            raise ValueError(f"an image is uint8 [height, width, 3], not {self.pixels.dtype} {list(shape)}")


Media = tuple[Image, ...]
"""Of one row, in the order of their places among its tokens."""
