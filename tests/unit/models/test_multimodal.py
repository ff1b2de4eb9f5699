"""Models that take more than text, told from others by their config.json."""

import json
from typing import Any

import pytest
import transformers
from transformers.models.auto import modeling_auto

from roll.configs.sections.model import Head
from roll.configs.tables.vision import VISION
from roll.models.multimodal import loads, note, refusal, refused, senses

TEXT = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 64}
TOWER = {"hidden_size": 8, "depth": 1}
BOTH = {"text_config": TEXT, "vision_config": TOWER}


@pytest.mark.parametrize(
    "model",
    [
        {"model_type": "qwen2_5_omni", "architectures": ["Qwen2_5OmniForConditionalGeneration"], **BOTH},
        {"model_type": "idefics3", **BOTH},
        {"model_type": "llava", **BOTH},
        {"model_type": "llava_llama", **TEXT, "mm_vision_tower": "openai/clip-vit-large-patch14-336"},
        {"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"], **BOTH},
        {"model_type": "internvl_chat", "llm_config": TEXT, "vision_config": TOWER},
        {"model_type": "deepseek_vl_v2", "language_config": TEXT, "vision_config": TOWER},
        {"model_type": "minicpmv", **TEXT, "vision_config": TOWER, "architectures": ["MiniCPMV"]},
        {"model_type": "phi3_v", **TEXT, "img_processor": {"name": "clip"}, "architectures": ["Phi3VForCausalLM"]},
        {"model_type": "qwen", **TEXT, "visual": {"heads": 16}, "architectures": ["QWenLMHeadModel"]},
        {"model_type": "molmo", **TEXT, "vision_backbone": TOWER},
        {"model_type": "ovis", "llm_config": TEXT, "visual_tokenizer_config": TOWER},
        {"model_type": "qwen2_5_omni", "thinker_config": BOTH, "talker_config": TEXT},
        {"model_type": "qwen2_audio", "text_config": TEXT, "audio_config": TOWER},
        {"model_type": "granite_speech", "text_config": TEXT, "encoder_config": TOWER, "projector_config": {}},
        {"model_type": "some_vlm_of_next_year", **BOTH},
        {"model_type": "fuyu_like", **TEXT, "image_size": 300, "patch_size": 30},
    ],
    ids=lambda model: model["model_type"],
)
def test_a_model_with_a_tower_is_refused_with_its_key(model: dict[str, Any]) -> None:
    said = refusal(model, "lm", "pretrain", "org/model")
    assert said is not None and said.startswith("pretrain: org/model takes pictures, video or sound as well")
    assert model["model_type"] in said and note(TEXT, "pretrain", "org/model") is None


@pytest.mark.parametrize(
    "model",
    [
        {"model_type": "gemma3_text", **TEXT},
        {"model_type": "qwen3_5_text", **TEXT, "image_token_id": 5, "vision_start_token_id": 6},
        {"model_type": "qwen3_next", **TEXT, "rope_parameters": {"rope_type": "default"}},
        {"model_type": "unheard_of", "architectures": ["SomethingForConditionalGeneration"], **TEXT},
        {"model_type": "llama", **TEXT, "vision_config": None, "quantization_config": {"bits": 4}},
        {"model_type": "dbrx", **TEXT, "attn_config": {"a": 1}, "ffn_config": {"b": 1}},
        {},
    ],
)
def test_a_model_of_text_alone_is_none_whatever_its_class_is_called(model: dict[str, Any]) -> None:
    assert not senses(model) and refusal(model, "lm", "pretrain", "m") is None and note(model, "pretrain", "m") is None


@pytest.mark.parametrize(("kind", "part"), [("gemma3n", "whole"), ("emu3", "text"), ("llama4", "text")])
def test_a_model_that_trains_on_text_is_taken_and_told(kind: str, part: str) -> None:
    model = {"model_type": kind, **BOTH}
    assert refusal(model, "lm", "pretrain", "org/model") is None and loads(model) == part
    said = note(model, "pretrain", "org/model")
    assert said is not None and ("checkpoints of the run hold no more" in said) is (part == "text")


MADE_OF_PARTS = {"musicgen", "musicgen_melody", "vision-encoder-decoder"}
"""Families whose configuration cannot be made of nothing."""
MAPPINGS: dict[Head, Any] = {
    "lm": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "value": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "sequence": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
}


@pytest.mark.parametrize("head", ["lm", "value", "sequence"])
def test_refused_are_those_that_transformers_has_no_such_head_for(head: Head) -> None:
    """Of all families that the pinned transformers builds a configuration of, with what it writes by default."""
    names = {*modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, *MAPPINGS[head]}
    wrong: list[str] = []
    for name in sorted(names - MADE_OF_PARTS):
        made = transformers.AutoConfig.for_model(name).to_dict()
        model = json.loads(json.dumps(made, default=str))
        is_known = name in MAPPINGS[head] or name in VISION
        if senses(model) and refused(model, head) is is_known:
            wrong.append(name)
    assert wrong == []
