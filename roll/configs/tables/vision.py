"""The families of models that see, by the model_type of config.json: how large a picture becomes, what it costs in
tokens, and which of the model's parts see.

Loading, data, engines and the plan read them here, and nowhere else. Plain numbers, without torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roll.errors import ConfigError, PictureError

_Colours = tuple[float, float, float]
BILINEAR, BICUBIC = 2, 3  # PIL's numbers of filters
MOST_RATIO = 200  # of the longer side to the shorter one; the families' own processors refuse more


@dataclass(frozen=True)
class Squares:
    """How a family cuts pictures into squares: pixels of a side, tokens of a square, the most squares of a picture, and
    the filter that resizes it; of models whose files say nothing of them."""

    side: int
    tokens: int
    most: int = 1
    resample: int = BICUBIC


@dataclass(frozen=True)
class VisionFacts:
    """Traits that distinguish a vision family from others.

    - `patch_size`, `merge_size`: of a config.json that says nothing of them
    - `min_pixels`, `max_pixels`: of a model whose files say nothing of them
    - `frames_in_limits`: as often do the files' limits count each pixel of a picture
    - `lifts_short_sides`: a side below one token is first scaled to it, and the other alike
    - `image_token`, `marks`: the keys of config.json for the token of pictures, and for those around a picture
    - `squares`: how pictures become squares of one size; None: patches, by their own shape
    - `written`: what the chat template writes for a picture, and what the processor makes of it before it cuts the text
      into tokens, here with one token of the picture
    - `looks_both_ways`: tokens of a picture attend to each other, later ones too
    - `colours`: mean and deviation of a model whose files say nothing of them; None: by the size of its patches
    """

    patch_size: int = 14
    merge_size: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 14 * 14 * 4 * 1280
    frames_in_limits: int = 1
    lifts_short_sides: bool = False
    image_token: str = "image_token_id"
    marks: tuple[str, str] = ("vision_start_token_id", "vision_end_token_id")
    squares: Squares | None = None
    written: tuple[str, str] | None = None
    looks_both_ways: bool = False
    colours: tuple[_Colours, _Colours] | None = None


_TOWER_WORDS, _MERGER_WORDS = (
    ("vision_model", "vision_tower", "visual"),
    ("projector", "multi_modal_projector", "merger"),
)
LANGUAGE, VISUAL = "model.language_model.", "model.visual."
"""Beginnings of the names of the two parts, of a model in memory (Qwen, GLM)."""
MERGER, DEEPSTACK = f"{VISUAL}merger.", f"{VISUAL}deepstack_merger_list."
"""The same of what brings features to the width of the text."""
TOWER, PROJECTOR = "model.vision_tower.", "model.multi_modal_projector."
"""The same of other families, whose projector is no part of the tower."""
_TOWERS, _PROJECTORS = (VISUAL, TOWER), (MERGER, DEEPSTACK, PROJECTOR)
SEES = (*_TOWERS, PROJECTOR)
"""Beginnings of the names of all that is not the language model, of any family."""
_OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_QWEN3 = VisionFacts(
    patch_size=16,
    min_pixels=256 * 256,
    max_pixels=4096 * 4096,
)
_GLM = VisionFacts(
    min_pixels=112 * 112 // 2,
    max_pixels=28 * 28 * 15000 // 2,
    frames_in_limits=2,
    lifts_short_sides=True,
    marks=("image_start_token_id", "image_end_token_id"),
)
VISION: Mapping[str, VisionFacts] = {
    "qwen2_vl": VisionFacts(),
    "qwen2_5_vl": VisionFacts(),
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen3_5": _QWEN3,
    "qwen3_5_moe": _QWEN3,
    "glm4v": _GLM,
    "glm4v_moe": _GLM,
    "gemma3": VisionFacts(
        image_token="image_token_index",
        marks=("boi_token_index", "eoi_token_index"),
        squares=Squares(896, 256, resample=BILINEAR),
        written=("<start_of_image>", "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"),
        looks_both_ways=True,
        colours=_HALVES,
    ),
    "internvl": VisionFacts(
        marks=("", ""),  # its config.json does not name them
        squares=Squares(448, 256, most=12),
        written=("<IMG_CONTEXT>", "<img><IMG_CONTEXT></img>"),
        colours=_IMAGENET,
    ),
}


def names_part(weight: str, word: str) -> bool:
    """Whether a part of freeze_module_prefix names this weight of a model in memory. It is the beginning of its name,
    or one of the words that recipes have for the parts of models that see, and what follows.

    Example: vision_model is the tower without its merger, vision_model.blocks its blocks, projector the merger.
    """
    head, _, rest = word.partition(".")
    if head in _TOWER_WORDS:
        is_there = weight.startswith(tuple(part + rest for part in _TOWERS))
        return is_there and (bool(rest) or not weight.startswith(_PROJECTORS))
    if head in _MERGER_WORDS:
        return weight.startswith(tuple(part + rest for part in _PROJECTORS))
    if head == "language_model":
        return weight.startswith(LANGUAGE + rest) or (not rest and weight.startswith("lm_head."))
    return weight.startswith(word)


@dataclass(frozen=True)
class PictureSizes:
    """How large pictures are for one model: its cut, and the fewest and most pixels that a run allows."""

    factor: int  # pixels of a side that are one token
    min_pixels: int
    max_pixels: int
    resample: int = BICUBIC  # PIL's number of the filter that resizes
    lifts_short_sides: bool = False

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The size of a picture of this size as the model takes it: sides are multiples of `factor`, the area is within
        the limits, the shape about the same (smart_resize of Qwen2-VL, arXiv 2409.12191). PictureError for a picture
        that is far too long.

        Example, with a factor of 28 and 3,136 to 12,544 pixels: 90 x 70 -> (84, 56); 400 x 100 -> (196, 28).
        """
        if self.lifts_short_sides and min(height, width) < self.factor:
            lift = max(self.factor / height, self.factor / width)
            height, width = int(height * lift), int(width * lift)
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
    def small(self) -> int:
        """Side of the small copy that comes behind a picture's squares; 0: it has none."""
        return 0

    @property
    def most_tokens(self) -> int:
        """No picture has more. A thin one, or one that had to grow, may have more than `max_pixels` alone would say."""
        most, least = self.max_pixels / self.factor**2, max(1, self.min_pixels) / self.factor**2
        thin = math.sqrt(most * MOST_RATIO) if most < MOST_RATIO else most  # one row: as long as the ratio allows
        grown = least + math.sqrt(least * MOST_RATIO) + math.sqrt(least / MOST_RATIO) + 1  # both sides are rounded up
        return max(1, math.floor(max(most, thin, grown)))

    @property
    def least_tokens(self) -> int:
        """Fewest tokens of a picture, about."""
        return max(1, self.min_pixels // self.factor**2)

    @property
    def text(self) -> str:
        """Describe what a picture becomes, for plans."""
        most = max(1, self.max_pixels // self.factor**2)
        return (
            f"{self.least_tokens:,} to {most:,} tokens each ({self.min_pixels:,} to {self.max_pixels:,} pixels, "
            f"{self.unit})"
        )

    @property
    def unit(self) -> str:
        """How many pixels a token has."""
        return f"{self.factor} x {self.factor} for each token"


@dataclass(frozen=True)
class SquareSizes(PictureSizes):
    """Pictures that become one square of `factor` pixels, or several of them (tiles): the numbers of pixels are those
    of the least and the most squares. Behind several tiles comes one more square, the whole picture made small."""

    tokens: int = 1  # of a square

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The size of the rows and columns of squares whose shape is the nearest (InternVL, arXiv 2404.16821, section
        3.3). Of equally near ones it is the larger, unless it has twice the pixels of the picture.

        Example, with squares of 448 pixels and 12 at most: 300 x 900 -> (448, 1344); 400 x 400 -> (448, 448); 900 x 900
        -> (896, 896).
        """
        least, most = (max(1, pixels // self.factor**2) for pixels in (self.min_pixels, self.max_pixels))
        shapes = ((rows, columns) for columns in range(1, most + 1) for rows in range(1, most // columns + 1))
        best, best_off = (1, 1), math.inf
        for rows, columns in sorted(
            (shape for shape in shapes if shape[0] * shape[1] >= least), key=lambda shape: shape[0] * shape[1]
        ):
            off = abs(width / height - columns / rows)
            is_filled = height * width > 0.5 * self.factor**2 * rows * columns
            if off < best_off or (off == best_off and is_filled):
                best, best_off = (rows, columns), off
        return best[0] * self.factor, best[1] * self.factor

    @property
    def small(self) -> int:
        return self.factor

    @property
    def most_squares(self) -> int:
        """No picture has more, the whole one made small included."""
        return self.most_tokens // self.tokens

    def num_squares(self, height: int, width: int) -> int:
        """Squares of a picture of this size, which is one that `size` gives."""
        count = super().num_tokens(height, width)
        return count if count == 1 else count + 1

    def num_tokens(self, height: int, width: int) -> int:
        return self.tokens * self.num_squares(height, width)

    @property
    def most_tokens(self) -> int:
        most = max(1, self.max_pixels // self.factor**2)
        return self.tokens * (most if most == 1 else most + 1)

    @property
    def least_tokens(self) -> int:
        least = max(1, self.min_pixels // self.factor**2)
        return self.tokens * (least if least == 1 else least + 1)

    @property
    def text(self) -> str:
        if self.most_tokens == self.least_tokens:
            return f"{self.tokens:,} tokens each (of any size: {self.unit})"
        least, most = (max(1, pixels // self.factor**2) for pixels in (self.min_pixels, self.max_pixels))
        return (
            f"{self.least_tokens:,} to {self.most_tokens:,} tokens each ({least} to {most} squares and a small copy; "
            f"{self.unit})"
        )

    @property
    def unit(self) -> str:
        return f"{self.tokens} for a square of {self.factor} x {self.factor}"


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
    def has_grid(self) -> bool:
        """Whether tokens of a picture have positions of their own, by their places in it (M-RoPE)."""
        return self.facts.squares is None

    @property
    def template_token(self) -> int:
        """The token that its processor puts a picture in the place of."""
        begins = self.facts.written is not None and self.start_token >= 0
        return self.start_token if begins else self.image_token

    @property
    def placeholders(self) -> tuple[int, ...]:
        """Ids that stand for pictures and frames: a model that samples one has said nothing, and its answer ends."""
        return tuple(token for token in (self.image_token, self.video_token) if token >= 0)

    def sees_by(self, weight: str) -> bool:
        """True for a weight of a model in memory that is not the language model's."""
        return weight.startswith(SEES)

    def names_part(self, weight: str, word: str) -> bool:
        return names_part(weight, word)

    def counts_as(self, other: VisionModel) -> bool:
        """Whether both make the same tokens of a picture of the same size."""
        return (self.image_token, self.sizes.unit) == (other.image_token, other.sizes.unit)

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
        return replace(self, sizes=replace(sizes, min_pixels=min(least, most), max_pixels=most))


def vision_model(model: Mapping[str, Any], processor: Mapping[str, Any]) -> VisionModel | None:
    """Return the vision model that config.json and preprocessor_config.json (empty if there is none) describe; None for
    families that are not in the table, and for models without vision."""
    facts, tower = VISION.get(str(model.get("model_type"))), model.get("vision_config")
    if facts is None or not isinstance(tower, Mapping):
        return None
    patch = side_of(tower.get("patch_size")) or facts.patch_size
    merge = int(tower.get("spatial_merge_size") or facts.merge_size)
    default = facts.colours or (_OPENAI if patch == 14 else _HALVES)
    image_token = model.get(facts.image_token, model.get("image_token_id"))
    return VisionModel(
        model_type=str(model["model_type"]),
        facts=facts,
        sizes=_areas(processor, facts, patch * merge)
        if facts.squares is None
        else _squares(model, processor, facts.squares),
        patch_size=patch,
        merge_size=merge,
        temporal_patch_size=int(tower.get("temporal_patch_size") or 2),
        image_token=-1 if image_token is None else int(image_token),
        video_token=_token(model, "video_token_id"),
        start_token=_token(model, facts.marks[0]),
        end_token=_token(model, facts.marks[1]),
        mean=_three(processor.get("image_mean"), default[0]),
        std=_three(processor.get("image_std"), default[1]),
    )


def _areas(processor: Mapping[str, Any], facts: VisionFacts, factor: int) -> PictureSizes:
    """Sizes of a family that keeps the shape of pictures."""
    named = processor.get("size") if isinstance(processor.get("size"), Mapping) else {}
    assert isinstance(named, Mapping)
    frames = facts.frames_in_limits
    least = named.get("shortest_edge") or named.get("min_pixels") or processor.get("min_pixels")
    most = named.get("longest_edge") or named.get("max_pixels") or processor.get("max_pixels")
    return PictureSizes(
        factor,
        -(-int(least) // frames) if least else facts.min_pixels,
        int(most) // frames if most else facts.max_pixels,
        _filter(processor, BICUBIC),
        facts.lifts_short_sides,
    )


def _squares(model: Mapping[str, Any], processor: Mapping[str, Any], default: Squares) -> SquareSizes:
    """Sizes of a family that cuts pictures into squares. ConfigError for a processor that shows parts of them, too."""
    if processor.get("do_pan_and_scan"):
        raise ConfigError(
            "preprocessor_config.json: do_pan_and_scan: true, but parts of a picture are not shown beside it. Set it "
            "to false"
        )
    side = side_of(model["vision_config"].get("image_size")) or default.side
    tokens = int(model.get("mm_tokens_per_image") or model.get("image_seq_length") or default.tokens)
    least, most = 1, default.most
    if most > 1:
        least, most = (int(processor.get(key) or value) for key, value in (("min_patches", 1), ("max_patches", most)))
    return SquareSizes(side, least * side**2, most * side**2, _filter(processor, default.resample), tokens=tokens)


def side_of(value: Any) -> int:
    """A length in pixels, which some files say twice: for both sides. 0 where they say nothing."""
    return int((value[0] if isinstance(value, list | tuple) else value) or 0)


def _filter(processor: Mapping[str, Any], default: int) -> int:
    value = processor.get("resample")
    return value if type(value) is int and 0 <= value <= 5 else default


PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
UNKNOWN: Mapping[str, Any] = {"model_type": "qwen2_5_vl", "vision_config": {}}
"""A config.json in place of one that is not here yet, of a model that may see."""


def _token(model: Mapping[str, Any], key: str) -> int:
    value = model.get(key)
    return -1 if value is None else int(value)


def _three(values: Any, default: tuple[float, float, float]) -> tuple[float, float, float]:
    if not isinstance(values, Sequence) or len(values) != 3:
        return default
    first, second, third = (float(value) for value in values)
    return first, second, third
