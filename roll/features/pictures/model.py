"""Models that see, when they are loaded."""

from typing import Any

from transformers import AutoModelForImageTextToText, PretrainedConfig

from roll.configs.sections.model import Head, ModelArgs
from roll.configs.tables.sight import VisionModel
from roll.errors import StrategyError
from roll.models.multimodal import refusal
from roll.models.vision.files import vision_of
from roll.models.vision.numbers import numbers_class


def kind(args: ModelArgs, config: PretrainedConfig, head: Head) -> tuple[Any, VisionModel] | None:
    """Return the class of a model that is shown pictures, and how it sees; None: it is loaded as one of text alone.
    StrategyError for one that cannot be."""
    if head == "lm" and (wrong := refusal(config.to_dict(), head, "model_name_or_path", args.model_name_or_path)):
        raise StrategyError(wrong)
    if (vision := vision_of(args)) is None:
        return None
    return AutoModelForImageTextToText if head == "lm" else numbers_class(config, head), vision
