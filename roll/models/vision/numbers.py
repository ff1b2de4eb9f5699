"""Models that see with a head that gives numbers: values of tokens, or rewards of rows."""

from functools import cache
from typing import Any

from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, MODEL_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.modeling_layers import GenericForSequenceClassification, GenericForTokenClassification

from roll.configs.sections.model import Head


def numbers_class(config: PretrainedConfig, head: Head) -> type[PreTrainedModel]:
    """Return the class of a family's backbone with a linear layer `score` on it, which transformers has for models of
    text alone. It is made as transformers makes those, so that weights have the names of the family's files, and
    `architectures` the name that engines take for such a head. Example: Qwen2_5_VLForSequenceClassification."""
    whole: Any = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)]
    return _class(MODEL_MAPPING[type(config)], whole.__name__, head == "value")


@cache
def _class(backbone: type[PreTrainedModel], whole: str, of_tokens: bool) -> type[PreTrainedModel]:
    family = next(each for each in backbone.__mro__ if each.__name__.endswith("PreTrainedModel"))
    form: Any = GenericForTokenClassification if of_tokens else GenericForSequenceClassification
    name = f"{backbone.__name__.removesuffix('Model')}{form.__name__.removeprefix('Generic')}"
    if (renaming := get_checkpoint_conversion_mapping(whole)) is not None:  # by the name of a class, for some families
        register_checkpoint_conversion_mapping(name, renaming, overwrite=True)
    return type(name, (form, family), {"__module__": backbone.__module__})
