"""Which modules of a model are gathered as one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roll.configs.sections.model import ModelArgs
from roll.configs.strategies.fsdp2_settings import WrapPolicy
from roll.distributed.strategy.fsdp2.sharding import groups
from roll.errors import StrategyError
from roll.models.loading import LoadedModel, load_model


def named(model: LoadedModel, **policy: Any) -> list[str]:
    names = {id(module): name for name, module in model.module.named_modules()}
    return [names[id(module)] for module in groups(model, WrapPolicy(**policy))]


@pytest.fixture
def tied(tiny_tied_model_dir: Path) -> LoadedModel:
    return load_model(ModelArgs(model_name_or_path=str(tiny_tied_model_dir)), "lm", empty=True)


@pytest.fixture
def untied(make_tiny_model_dir: Callable[..., Path]) -> LoadedModel:
    directory = make_tiny_model_dir(tie_word_embeddings=False)
    return load_model(ModelArgs(model_name_or_path=str(directory)), "lm", empty=True)


LAYERS = ["backbone.layers.0", "backbone.layers.1"]


def test_blocks_embedding_and_head_or_named_classes_are_gathered(untied: LoadedModel, tied: LoadedModel) -> None:
    assert named(untied) == ["backbone.embed_tokens", *LAYERS, "head"]
    assert named(tied) == LAYERS
    inner = [f"{layer}.{name}" for layer in LAYERS for name in ("self_attn", "mlp")]
    assert named(tied, transformer_layer_cls_to_wrap=["Qwen2Attention", "Qwen2MLP"]) == inner
    with pytest.raises(StrategyError, match="the model has no LlamaDecoderLayer. It has .*Qwen2DecoderLayer"):
        named(tied, transformer_layer_cls_to_wrap=["LlamaDecoderLayer"])


def test_large_modules_are_groups_besides_and_what_is_in_a_group_is_not_counted_twice(untied: LoadedModel) -> None:
    matrix = untied.module.get_submodule("backbone.layers.0.mlp.up_proj.weight".rpartition(".")[0])
    size = sum(parameter.numel() for parameter in matrix.parameters())
    found = named(untied, min_num_params=size)
    mlp = [f"{layer}.mlp.{name}_proj" for layer in LAYERS for name in ("gate", "up", "down")]
    assert set(mlp) <= set(found) and set(LAYERS) <= set(found) and "" not in found
    assert not any(name.endswith("mlp") for name in found)  # nothing is left of it outside of its three matrices
    assert "head.lm_head" not in found  # whose weight the head reads itself
