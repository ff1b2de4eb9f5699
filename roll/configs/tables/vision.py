"""The families of models that see, by the model_type of config.json: how large a picture becomes, what it costs in
tokens, and which of the model's parts see.

Loading, data, engines and the plan read them here, and nowhere else. Plain numbers, without torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roll.errors import ConfigError, PictureError

MOST_RATIO = 200  # of the longer side to the shorter one; the families' own processors refuse more


@dataclass(frozen=True)
class VisionFacts:
    """Traits that distinguish a vision family from others.

    - `patch_size`, `merge_size`: of a config.json that says nothing of them
    - `min_pixels`, `max_pixels`: of a model whose files say nothing of them
    - `frames_in_limits`: as often do the files' limits count each pixel of a picture
    - `marks`: the keys of config.json for the tokens around a picture
    """

    patch_size: int = 14
    merge_size: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 14 * 14 * 4 * 1280
    frames_in_limits: int = 1
    marks: tuple[str, str] = ("vision_start_token_id", "vision_end_token_id")


_TOWER_WORDS, _MERGER_WORDS = (
    ("vision_model", "vision_tower", "visual"),
    ("projector", "multi_modal_projector", "merger"),
)
LANGUAGE, TOWER = "model.language_model.", "model.visual."
"""Beginnings of the names of the two parts, of a model in memory."""
MERGER, DEEPSTACK = f"{TOWER}merger.", f"{TOWER}deepstack_merger_list."
"""The same of what brings features to the width of the text."""
_QWEN3 = VisionFacts(
    patch_size=16,
    min_pixels=256 * 256,
    max_pixels=4096 * 4096,
)
VISION: Mapping[str, VisionFacts] = {
    "qwen2_vl": VisionFacts(),
    "qwen2_5_vl": VisionFacts(),
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen3_5": _QWEN3,
    "qwen3_5_moe": _QWEN3,
    "glm4v": VisionFacts(
        min_pixels=112 * 112 // 2,
        max_pixels=28 * 28 * 15000 // 2,
        frames_in_limits=2,
        marks=("image_start_token_id", "image_end_token_id"),
    ),
}


def names_part(weight: str, word: str) -> bool:
    """Whether a part of freeze_module_prefix names this weight of a model in memory. It is the beginning of its name,
    or one of the words that recipes have for the parts of models that see, and what follows.

    Example: vision_model is the tower without its merger, vision_model.blocks its blocks, projector the merger.
    """
    head, _, rest = word.partition(".")
    if head in _TOWER_WORDS:
        return weight.startswith(TOWER + rest) and (bool(rest) or not weight.startswith((MERGER, DEEPSTACK)))
    if head in _MERGER_WORDS:
        return weight.startswith(tuple(part + rest for part in (MERGER, DEEPSTACK)))
    if head == "language_model":
        return weight.startswith(LANGUAGE + rest) or (not rest and weight.startswith("lm_head."))
    return weight.startswith(word)


@dataclass(frozen=True)
class PictureSizes:
    """How large pictures are for one model: its cut, and the fewest and most pixels that a run allows."""

    factor: int  # pixels of a side that are one token
    min_pixels: int
    max_pixels: int

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The size of a picture of this size as the model takes it: sides are multiples of `factor`, the area is within
        the limits, the shape about the same (smart_resize of Qwen2-VL, arXiv 2409.12191). PictureError for a picture
        that is far too long.

        Example, with a factor of 28 and 3,136 to 12,544 pixels: 90 x 70 -> (84, 56); 400 x 100 -> (196, 28).
        """
        rows, columns = (round(side / self.factor) for side in (height, width))
        if rows * columns * self.factor**2 > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            rows, columns = (max(1, math.floor(side / shrink / self.factor)) for side in (height, width))
        elif rows * columns * self.factor**2 < max(1, self.min_pixels):
            grow = math.sqrt(max(1, self.min_pixels) / (height * width))
            rows, columns = (math.ceil(side * grow / self.factor) for side in (height, width))
        if any(max(sides) > MOST_RATIO * min(sides) for sides in ((height, width), (rows, columns))):
            # engines' processors look at the result as well
            raise PictureError(f"it is {width} x {height} pixels: one side is over {MOST_RATIO} times the other")
        return rows * self.factor, columns * self.factor

    def num_tokens(self, height: int, width: int) -> int:
        """Tokens of a picture of this size, which is one that `size` gives."""
        return height // self.factor * (width // self.factor)

    @property
    def most_tokens(self) -> int:
        """No picture has more. A thin one, or one that had to grow, may have more than `max_pixels` alone would say."""
        most, least = self.max_pixels / self.factor**2, max(1, self.min_pixels) / self.factor**2
        thin = math.sqrt(most * MOST_RATIO) if most < MOST_RATIO else most  # one row: as long as the ratio allows
        grown = least + math.sqrt(least * MOST_RATIO) + math.sqrt(least / MOST_RATIO) + 1  # both sides are rounded up
        return max(1, math.floor(max(most, thin, grown)))


@dataclass(frozen=True)
class VisionModel:
    """A model that sees, as the files beside it say."""

    model_type: str
    facts: VisionFacts
    sizes: PictureSizes
    patch_size: int
    merge_size: int
    temporal_patch_size: int
    image_token: int
    video_token: int
    start_token: int
    end_token: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def placeholders(self) -> tuple[int, ...]:
        """Ids that stand for pictures and frames: a model that samples one has said nothing, and its answer ends."""
        return tuple(token for token in (self.image_token, self.video_token) if token >= 0)

    def counts_as(self, other: VisionModel) -> bool:
        """Whether both make the same tokens of a picture of the same size."""
        return (self.image_token, self.sizes.factor) == (other.image_token, other.sizes.factor)

    def grid(self, height: int, width: int) -> tuple[int, int, int]:
        """Patches of a picture of this size: in time, vertically, horizontally."""
        return 1, height // self.patch_size, width // self.patch_size

    def with_limits(self, min_pixels: int | None, max_pixels: int | None) -> VisionModel:
        """The same under a run's limits: the narrower ones count. ConfigError where no picture is as small."""
        sizes = self.sizes
        if max_pixels is not None and max_pixels < sizes.factor**2:
            raise ConfigError(
                f"data_args.image_max_pixels: {max_pixels}, but the smallest picture that {self.model_type} takes has "
                f"{sizes.factor} x {sizes.factor} = {sizes.factor**2} pixels. Set it to that or more"
            )
        least = sizes.min_pixels if min_pixels is None else max(sizes.min_pixels, min_pixels)
        most = sizes.max_pixels if max_pixels is None else min(sizes.max_pixels, max_pixels)
        return VisionModel(**{**vars(self), "sizes": PictureSizes(sizes.factor, min(least, most), most)})


def vision_model(model: Mapping[str, Any], processor: Mapping[str, Any]) -> VisionModel | None:
    """Return the vision model that config.json and preprocessor_config.json (empty if there is none) describe; None for
    families that are not in the table, and for models without vision."""
    facts, tower = VISION.get(str(model.get("model_type"))), model.get("vision_config")
    if facts is None or not isinstance(tower, Mapping):
        return None
    patch = int(tower.get("patch_size") or facts.patch_size)
    merge = int(tower.get("spatial_merge_size") or facts.merge_size)
    named = processor.get("size") if isinstance(processor.get("size"), Mapping) else {}
    assert isinstance(named, Mapping)
    frames = facts.frames_in_limits
    least = named.get("shortest_edge") or named.get("min_pixels") or processor.get("min_pixels")
    most = named.get("longest_edge") or named.get("max_pixels") or processor.get("max_pixels")
    default = _OPENAI if patch == 14 else _HALVES
    return VisionModel(
        model_type=str(model["model_type"]),
        facts=facts,
        sizes=PictureSizes(
            patch * merge,
            -(-int(least) // frames) if least else facts.min_pixels,
            int(most) // frames if most else facts.max_pixels,
        ),
        patch_size=patch,
        merge_size=merge,
        temporal_patch_size=int(tower.get("temporal_patch_size") or 2),
        image_token=_token(model, "image_token_id"),
        video_token=_token(model, "video_token_id"),
        start_token=_token(model, facts.marks[0]),
        end_token=_token(model, facts.marks[1]),
        mean=_three(processor.get("image_mean"), default[0]),
        std=_three(processor.get("image_std"), default[1]),
    )


PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
UNKNOWN: Mapping[str, Any] = {"model_type": "qwen2_5_vl", "vision_config": {}}
"""A config.json in place of one that is not here yet, of a model that may see."""
_OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def _token(model: Mapping[str, Any], key: str) -> int:
    value = model.get(key)
    return -1 if value is None else int(value)


def _three(values: Any, default: tuple[float, float, float]) -> tuple[float, float, float]:
    if not isinstance(values, Sequence) or len(values) != 3:
        return default
    first, second, third = (float(value) for value in values)
    return first, second, third
