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

from roll.configs.memory.closed_forms import closed_form
from roll.configs.memory.engine import cache_bytes_per_token
from roll.configs.memory.model_shape import model_shape
from roll.configs.sections.model import Head
from roll.configs.tables.families import FAMILIES as KNOWN
from roll.models.megatron.family_table import FAMILIES as BY_MEGATRON
from tests.helpers.cases import cases
from tests.parity.megatron.models import config as tiny_config

MODELS = Path(__file__).parent / "models"
FAMILIES = tuple(kind for kind, family in KNOWN.items() if not family.is_measured)


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


def test_every_family_that_megatron_knows_is_known() -> None:
    assert KNOWN.keys() >= BY_MEGATRON.keys()


@cases("changes")
@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_sizes_are_those_of_the_torch_model(family: str, changes: dict[str, Any]) -> None:
    config = tiny_config(family, **changes)
    model = json.loads(config.to_json_string())
    assert counted(model) == names_and_sizes(built(config))
    if type(config) in AutoModelForTokenClassification._model_mapping:
        assert counted(model, "value") == names_and_sizes(built(config, "value"))
    for num_labels in (1, 3) if type(config) in AutoModelForSequenceClassification._model_mapping else ():
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


@pytest.mark.parametrize("key", ["num_experts", "num_key_value_heads", "hidden_size"])
def test_a_number_that_is_left_to_transformers_is_not_guessed(key: str) -> None:
    model = json.loads((MODELS / "qwen3-30b-a3b.json").read_text(encoding="utf-8"))
    assert closed_form(model) is not None
    assert closed_form(model | {key: "2"}) is None
    del model[key]
    assert closed_form(model) is None


def test_latent_attention_caches_its_latents_alone() -> None:
    """DeepSeek-V3: 512 + 64 elements per token and layer (arXiv 2412.19437, section 4.2), on every device."""
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    model = json.loads(tiny_config("deepseek_v3", **latent).to_json_string())
    shape, why = model_shape(model)
    assert shape is not None, why
    one, _ = shape.layers
    assert (one.cached, one.cache_cuts) == (576, 1)
    assert cache_bytes_per_token(shape, 2, tensor=8) == 2 * 2 * 576
    assert one.pair_products == 4 * (192 + 128)


def test_layers_of_glm4_moe_lite_have_experts_as_listed() -> None:
    """transformers writes no first_k_dense_replace for this family."""
    experts = KNOWN["glm4_moe_lite"].experts
    assert experts is not None and experts.is_sparse is not None
    assert [experts.is_sparse({"mlp_layer_types": ["sparse", "dense"]}, layer) for layer in (0, 1)] == [True, False]
    assert [experts.is_sparse({}, layer) for layer in (0, 1)] == [False, True]


@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3", "glm4_moe_lite"])
def test_a_head_for_further_tokens_is_beside_the_model(family: str) -> None:
    """A layer, a matrix and three norms; files hold it, transformers builds none."""
    shape, why = model_shape(json.loads(tiny_config(family, num_nextn_predict_layers=1).to_json_string()))
    without, _ = model_shape(json.loads(tiny_config(family, num_nextn_predict_layers=0).to_json_string()))
    assert shape is not None and without is not None, why
    assert shape.weights == without.weights and not without.mtp
    last = sum(weight.num_elements for weight in shape.weights if weight.layer == 1)
    assert sum(weight.num_elements for weight in shape.mtp) == last + 3 * 32 + 2 * 32 * 32
