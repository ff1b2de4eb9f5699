"""An answer to rows of boxes as a perfect model would give it, whatever was sampled, for whole runs."""

from __future__ import annotations

import json
from dataclasses import replace

from PIL import Image

from roll.configs.tables.sight import PictureSizes
from roll.rewards.base import RewardInput, RewardResult
from roll.rewards.detection import Detection

SIZES = PictureSizes(28, 28 * 28, 112 * 112)
"""Those of the model of examples/tiny-count."""


class PerfectBoxes(Detection):
    """The boxes of the reference where they are in the picture as the model of examples/tiny-count takes it."""

    def __call__(self, sample: RewardInput) -> RewardResult:
        (source,) = sample.pictures
        with Image.open(source.place) as image:
            shown_height, shown_width = SIZES.size(image.height, image.width)
            down, across = shown_height / image.height, shown_width / image.width
        boxes = [
            box
            | {"bbox_2d": [corner * scale for corner, scale in zip(box["bbox_2d"], (across, down) * 2, strict=True)]}
            for box in json.loads(sample.ground_truth)
        ]
        return super().__call__(replace(sample, response_text=json.dumps(boxes)))
