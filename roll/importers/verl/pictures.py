"""verl's keys of pictures: what becomes of them, for which models, and in which runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.tables.vision import VISION
from roll.importers.rows import Change, CombinedKeys, SourceLookup, data
from roll.importers.verl.common import ACTOR, MEGATRON, MODEL, validates
from roll.models.multimodal import ONES_SHOWN

ONLY_RLVR: str = data("words.yaml")["only rlvr"]
_NO_VIDEOS: str = data("words.yaml")["no videos"]
COLUMNS: Mapping[str, str] = {"data.image_key": "images", "data.video_key": "videos", "data.audio_key": "audios"}
"""Columns with their names by default."""
_IMAGES = "data.image_key"
_SIZES = "data.mm_processor_kwargs"
_OF_SIZE = ("min_pixels", "max_pixels")
_SEES = re.compile(
    r"(?i)[-_.\d](vl|vision|omni|vlm)([-_.\d/]|$)|minicpm-?[vo]|internvl|llava|glm-?4\.\dv|glm45v|gemma-?3-(4|12|27)b"
)
_GLM = re.compile(r"glm4[156]v")  # GLM-4V is older
_MIXTURE = re.compile(r"(?i)[-_]a\d+(\.\d+)?b")


def name_sees(name: object) -> bool:
    """True for a name such as models have that read pictures."""
    return _SEES.search(_last(name)) is not None


def is_shown(name: object) -> bool:
    """True for a name of a family that is shown pictures here. Example: Qwen2.5-VL-7B-Instruct is of qwen2_5_vl."""
    plain = re.sub(r"[^a-z0-9]", "", _last(name).lower())
    if "glm" in plain:
        return _GLM.search(plain) is not None
    kind = next((kind for kind in VISION if kind.replace("_", "") in plain), None)
    if kind == "internvl":  # files for transformers' own class; the others come with code of their own
        return plain.endswith("hf")
    if kind is not None and _MIXTURE.search(_last(name)):
        kind = f"{kind}_moe"
    return kind in VISION


def _last(name: object) -> str:
    return str(name or "").rstrip("/").rpartition("/")[2]


def refusal(name: object) -> str:
    """Why a model of this name is shown no pictures here; empty where nothing of the name says so."""
    if not name_sees(name) or is_shown(name):
        return ""
    return f"{_last(name)} is not read as a model that sees: {ONES_SHOWN}"


def pictures(source: SourceLookup) -> CombinedKeys:
    """Columns of pictures, videos and sound, and the limits of size. What a whole configuration names by default is
    left to the default here, under which a row may lack the column."""
    name, is_whole = source(f"{MODEL}.path"), _has_default_names(source)
    if is_whole and not name_sees(name):
        return CombinedKeys({}, _OF_TEXT)
    if reason := refusal(name):
        return CombinedKeys({}, "", changes=dict.fromkeys(_picture_keys(source), reason))
    values: dict[str, Any] = {}
    if source.is_set(_IMAGES) and not is_whole:
        values["image_key"] = source(_IMAGES)
    values |= {
        f"image_{size}": source.size(f"{_SIZES}.{size}") for size in _OF_SIZE if source.is_set(f"{_SIZES}.{size}")
    }
    sections = ["actor_train", *([] if validates(source) else ["validation"])]
    settings = {f"{section}.data_args.{key}": value for section in sections for key, value in values.items()}
    shown = ", ".join(f"{key} {value}" for key, value in values.items())
    text = f"data_args: {shown}." if values else "the column images is read where a row has one."
    others = [key for key in _picture_keys(source) if key in COLUMNS and key != _IMAGES]
    if is_whole:
        return CombinedKeys(settings, text, idle=dict.fromkeys(others, "the name of a column that is not asked for"))
    return CombinedKeys(settings, text, changes=dict.fromkeys(others, _NO_VIDEOS))


def no_pictures(source: SourceLookup) -> CombinedKeys:
    """The same keys of a run that shows none."""
    if _has_default_names(source) and not name_sees(source(f"{MODEL}.path")):
        return CombinedKeys({}, _OF_TEXT)
    return CombinedKeys({}, "", changes=dict.fromkeys(_picture_keys(source), ONLY_RLVR))


_OF_TEXT = "the names of columns that rows of text have not."


def _picture_keys(source: SourceLookup) -> list[str]:
    return [key for key in (*COLUMNS, *(f"{_SIZES}.{size}" for size in _OF_SIZE)) if source.is_set(key)]


def _has_default_names(source: SourceLookup) -> bool:
    """True for a whole configuration of verl, which names the columns of everything, and says no more of it."""
    keys = _picture_keys(source)
    is_whole = "data.video_key" in keys or source.is_set("data.return_raw_input_ids")
    return is_whole and bool(keys) and all(source(key) == COLUMNS.get(key) for key in keys)


def picture_notes(values: Mapping[str, Any], shows: bool) -> Iterator[Change]:
    """Yield notes that follow from the name of a model with vision. `shows`: the run is one that shows pictures."""
    name = values.get(f"{MODEL}.path") or values.get("model.partial_pretrain")
    if not name_sees(name):
        return
    if shows and is_shown(name):
        for why, words in stops(SourceLookup(values, {})):
            yield Change(f"{_last(name)}: {why}. Give {words} after the file.")
    elif not any(values.get(key) is not None for key in COLUMNS):
        reads = f"{_last(name)} reads pictures, in the column images by default: {ONLY_RLVR}"
        yield Change(f"{refusal(name) if shows else reads}.")


def stops(source: SourceLookup) -> Iterator[tuple[str, str]]:
    """Yield what stops a run that reads rows with pictures, and verl's overrides that avoid it."""
    if source(f"{ACTOR}.strategy") == MEGATRON:
        yield "megatron_train shows no pictures, and fsdp2_train does", f"{ACTOR}.strategy=fsdp2"
    elif source(f"{ACTOR}.ulysses_sequence_parallel_size", 1) != 1:
        yield "ranks that share sequences do not divide pictures", f"{ACTOR}.ulysses_sequence_parallel_size=1"
    if source("algorithm.adv_estimator", "gae") == "gae":
        yield "models that see have no critic", "algorithm.adv_estimator=grpo"
