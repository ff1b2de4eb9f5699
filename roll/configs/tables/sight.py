"""How a model sees pictures: their sizes and places in it, and which of its parts see. Plain numbers, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

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
    looks_both_ways: bool = False
    colours: tuple[_Colours, _Colours] | None = None


WRITTEN: Mapping[str, tuple[str, str]] = {
    "gemma3": ("<start_of_image>", "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"),
    "internvl": ("<IMG_CONTEXT>", "<img><IMG_CONTEXT></img>"),
}
"""Texts by model_type: what the chat template writes for a picture, and what the processor makes of it before it cuts
the text into tokens, here with one token of the picture."""
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
        begins = self.model_type in WRITTEN and self.start_token >= 0
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
