"""Models that see or hear, by their config.json; read before a run starts, so it needs no torch.

Families of `roll.configs.tables.vision` are shown pictures. Some others are trained on text all the same: transformers
has a causal language model for their config.json. The rest end where the model is loaded.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from roll.configs.sections.model import Head
from roll.configs.tables.vision import VISION

_SENSE = re.compile(
    r"(.*_)?(vision|visual|image|img|vit|video|audio|speech|sound|acoustic|codec|vq|thinker|mm)(_.*)?",
    re.IGNORECASE,
)
_NO_SENSE = re.compile(r".*(token|processor_class|_ids?)")  # numbers of tokens, which text-only models may keep
_BESIDE = ("encoder_config", "projector_config", "protein_encoder_config", "qformer_config")
WHOLE = "whole"
TEXT_PART = "text"
_AS_TEXT: Mapping[str, Literal["whole", "text"]] = {
    "emu3": TEXT_PART,
    "fuyu": WHOLE,
    "gemma3n": WHOLE,
    "gemma4": WHOLE,
    "gemma4_unified": WHOLE,
    "git": WHOLE,
    "got_ocr2": WHOLE,
    "llama4": TEXT_PART,
    "mllama": TEXT_PART,
    "moshi": TEXT_PART,
    "phi4_multimodal": WHOLE,
    "qwen4_exp": TEXT_PART,
}
"""Classes by model_type: what AutoModelForCausalLM of the pinned transformers makes of them."""
_SCORING = frozenset({"gemma3", "modernvbert"})
_WITH_HEAD: Mapping[str, frozenset[str]] = {
    "value": frozenset({"modernvbert", "qwen3_asr"}),
    "sequence": _SCORING,
    "reward": _SCORING,
}
"""The same of AutoModelForTokenClassification and AutoModelForSequenceClassification."""


ONES_SHOWN = f"those that are shown pictures are {', '.join(VISION)}. Name one of these, or a model of text alone"


def senses(model: Mapping[str, Any]) -> bool:
    """True for a config.json of a model that takes more than text: it describes a tower for pictures, video or sound
    (vision_config, visual, audio_config ...), any encoder beside its part for text, or patches of pictures."""
    if any(_describes(key, value) for key, value in model.items()):
        return True
    if isinstance(model.get("text_config"), Mapping) and any(isinstance(model.get(key), Mapping) for key in _BESIDE):
        return True
    return type(model.get("image_size")) is int and type(model.get("patch_size")) is int


def refused(model: Mapping[str, Any], head: Head) -> bool:
    """True where no head of this kind can be put on such a model."""
    known = _AS_TEXT if head == "lm" else _WITH_HEAD[head]
    return senses(model) and model.get("model_type") not in {*known, *VISION}


def loads(model: Mapping[str, Any]) -> Literal["whole", "text"]:
    """Return which part of a supported model is loaded: the whole, or the part for text."""
    return _AS_TEXT.get(str(model.get("model_type")), TEXT_PART)


def _describes(key: str, value: object) -> bool:
    if not _SENSE.fullmatch(key) or _NO_SENSE.fullmatch(key):
        return False
    return (isinstance(value, Mapping) and bool(value)) or (key.startswith("mm_") and isinstance(value, str))


def refusal(model: Mapping[str, Any], head: Head, key: str, name: str | None) -> str | None:
    """The sentence for a model that no run can train or score with, None for others. `key`: the YAML's of `name`."""
    if not refused(model, head):
        return None
    return (
        f"{key}: {name} takes pictures, video or sound as well ({_kind(model)}), and could not be loaded: {ONES_SHOWN}"
    )


def note(model: Mapping[str, Any], key: str, name: str | None) -> str | None:
    """The sentence for a model that takes more than text and is trained on text all the same, None for others."""
    if not senses(model) or model.get("model_type") in VISION:
        return None
    if loads(model) == WHOLE:
        what = "all of it is loaded, and what reads pictures or sound stays as it is"
    else:
        what = "its part for text is loaded alone, and checkpoints of the run hold no more than that"
    return f"{key}: {name} takes pictures, video or sound as well ({_kind(model)}), and this run shows it text: {what}."


def _kind(model: Mapping[str, Any]) -> str:
    return f"config.json: {model.get('model_type') or 'no model_type'}"
