"""Every weight of a model from its config.json alone, against torch models without storage."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
)

from roll.configs.memory.model_shape import model_shape
from roll.configs.roles import Head
from tests.parity.megatron.models import config as tiny_config

MODELS = Path(__file__).parent / "models"
FAMILIES = ("llama", "qwen2", "qwen3", "mixtral", "qwen3_moe")
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"tie_word_embeddings": True},
    {"attention_bias": True},
    {"mlp_bias": True},
    {"mlp_only_layers": [1]},
    {"decoder_sparse_step": 2},
    {"num_key_value_heads": 4},
)


KINDS: dict[Head, Any] = {
    "lm": AutoModelForCausalLM,
    "value": AutoModelForTokenClassification,
    "sequence": AutoModelForSequenceClassification,
}


def built(config: PretrainedConfig, head: Head = "lm", num_labels: int = 1) -> torch.nn.Module:
    kind = KINDS[head]
    config.num_labels = num_labels
    with torch.device("meta"):
        return kind.from_config(config)


def names_and_sizes(model: torch.nn.Module) -> Counter[str]:
    """Elements of each parameter; transformers holds all experts of a layer in two tensors."""
    sizes = Counter[str]()
    for name, parameter in model.named_parameters():
        sizes[name.partition(".experts.")[0] + ".experts" if ".experts." in name else name] += parameter.numel()
    return sizes


def counted(model: dict[str, Any], head: Head = "lm") -> Counter[str]:
    shape, why = model_shape(model, head)
    assert shape is not None, why
    sizes = Counter[str]()
    for weight in shape.weights:
        name = weight.name.partition(".experts.")[0] + ".experts" if ".experts." in weight.name else weight.name
        sizes[name] += weight.num_elements
    return sizes


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_sizes_are_those_of_the_torch_model(family: str, changes: dict[str, Any]) -> None:
    config = tiny_config(family, **changes)
    model = json.loads(config.to_json_string())
    assert counted(model) == names_and_sizes(built(config))
    assert counted(model, "value") == names_and_sizes(built(config, "value"))
    for num_labels in (1, 3):
        rewards = built(config, "sequence", num_labels)
        assert counted(json.loads(config.to_json_string()), "sequence") == names_and_sizes(rewards)


@pytest.mark.parametrize(
    ("file", "elements"), [("qwen2.5-7b.json", 7_615_616_512), ("qwen3-30b-a3b.json", 30_532_122_624)]
)
def test_models_of_the_size_people_train_count_as_in_torch(file: str, elements: int) -> None:
    model = json.loads((MODELS / file).read_text(encoding="utf-8"))
    kind = model.pop("model_type")
    sizes = counted({"model_type": kind, **model})
    assert sizes == names_and_sizes(built(AutoConfig.for_model(kind, **model)))
    assert sizes.total() == elements


def test_a_config_that_says_too_little_or_of_another_family_is_told_of() -> None:
    assert model_shape({"model_type": "gpt2"})[1].startswith("the arithmetic knows no gpt2 models; it knows llama,")
    model = json.loads((MODELS / "qwen3-30b-a3b.json").read_text(encoding="utf-8")) | {"num_experts": None}
    assert model_shape(model) == (None, "config.json does not say num_experts")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hidden_size": "2048"}, "hidden_size is no whole number from 1 to 10000000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is no whole number from 1 to 10000"),
        ({"vocab_size": 10**400}, "vocab_size is no whole number from 1 to 10000000"),
        ({"num_key_value_heads": "4"}, "num_key_value_heads is no whole number from 1 to 10000000"),
        ({"num_key_value_heads": [4]}, "num_key_value_heads is no whole number from 1 to 10000000"),
        ({"head_dim": -1}, "head_dim is no whole number from 1 to 10000000"),
        ({"head_dim": {}}, "head_dim is no whole number from 1 to 10000000"),
        ({"num_experts": "128"}, "num_experts is no whole number from 1 to 10000000"),
        ({"decoder_sparse_step": "1"}, "decoder_sparse_step is no whole number from 1 to 10000000"),
        ({"mlp_only_layers": 5}, "mlp_only_layers is no list of whole numbers"),
        ({"mlp_only_layers": "3"}, "mlp_only_layers is no list of whole numbers"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is neither true nor false"),
        ({"head_dim": None, "num_attention_heads": 5000}, "num_attention_heads is larger than hidden_size"),
    ],
    ids=str,
)
def test_a_damaged_config_is_told_of_by_its_keys(changes: dict[str, Any], why: str) -> None:
    model = json.loads((MODELS / "qwen3-30b-a3b.json").read_text(encoding="utf-8")) | changes
    assert model_shape(model) == (None, f"config.json: {why}")


@pytest.mark.parametrize("family", FAMILIES)
def test_where_transformers_has_a_number_of_heads_of_its_own_none_is_guessed(family: str) -> None:
    """llama takes all heads for key-value heads; the others take 4, 8 or 32, whatever the heads."""
    model = json.loads(tiny_config(family).to_json_string())
    del model["num_key_value_heads"]
    shape, why = model_shape(model)
    if family == "llama":
        assert shape is not None and shape.num_kv_heads == shape.num_heads
        assert counted(model) == names_and_sizes(built(AutoConfig.for_model(**model)))
    else:
        assert why == "config.json does not say num_key_value_heads"
