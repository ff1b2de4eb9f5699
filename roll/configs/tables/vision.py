"""The families of models that see, by the model_type of config.json: how large a picture becomes, and what it costs in
tokens.

Loading, data, engines and the plan read them here, and nowhere else. Plain numbers, without torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from roll.configs.tables.sight import BICUBIC, BILINEAR, PictureSizes, Squares, SquareSizes, VisionFacts, VisionModel
from roll.errors import ConfigError

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
        looks_both_ways=True,
        colours=_HALVES,
    ),
    "internvl": VisionFacts(
        marks=("", ""),  # its config.json does not name them
        squares=Squares(448, 256, most=12),
        colours=_IMAGENET,
    ),
}


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
