"""Every weight of types without a family from their config.json alone, against torch models without storage."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForImageTextToText, PretrainedConfig
from transformers.models.auto.auto_mappings import CONFIG_MAPPING_NAMES

from roll.configs.checks.lora_model import lora_model_problems
from roll.configs.memory.megatron import rank_elements
from roll.configs.memory.model_shape import FORMS, model_shape
from roll.configs.memory.passes import matrix_elements
from roll.configs.memory.trained import adapted
from roll.configs.sections.model import ModelArgs
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_facts import TRIED
from roll.configs.tables.roles import ACTOR_TRAIN
from tests.helpers.configs import config as of_run
from tests.parity.families.models import tiny_config
from tests.unit.configs.memory.test_model_shape import built, counted, names_and_sizes

FIRST = ("kimi_linear", "longcat_flash")
EVERY = [kind if kind in FIRST else pytest.param(kind, marks=pytest.mark.slow) for kind in FORMS if kind in TRIED]
CHANGES: Mapping[str, tuple[object, ...]] = {
    "tie_word_embeddings": (True, False),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias", "projectors_bias"), (True, False)),
    **dict.fromkeys(("use_conv_bias", "mamba_conv_bias", "conv_bias", "mamba_rms_norm"), (True, False)),
    **dict.fromkeys(("n_shared_experts", "n_groups", "mamba_n_groups", "decoder_sparse_step"), (2,)),
    "mlp_only_layers": ([1],),
    "num_dense_layers": (0,),
    "num_local_experts": (1,),
    "num_experts": (1,),
    "q_lora_rank": (None,),
    "block_auto_adjust_ff_dim": (False,),
    "block_ffn_dim_multiplier": (None, 2.5),
    "moe_latent_size": (24,),
    "lru_width": (40,),
    "num_key_value_heads": (None, 4, 1),
    "linear_key_head_dim": (None, 4),
    "linear_num_key_heads": (None, 4),
    "full_attn_idxs": ([0, 3],),
    "attn_layer_indices": (None, [1]),
    "time_step_rank": ("auto", 5),
    "mamba_dt_rank": (3,),
    **dict.fromkeys(("use_qk_norm", "qk_layernorm", "use_post_norm", "use_parallel_residual"), (True, False)),
    **dict.fromkeys(("multi_query", "new_decoder_architecture", "parallel_attn", "bias"), (True, False)),
    **dict.fromkeys(("attention_k_eq_v", "use_double_wide_mlp", "is_moe", "lm_head_bias"), (True, False)),
    **dict.fromkeys(("enable_bias", "use_qkv_bias", "attention_out_bias"), (True, False)),
    **dict.fromkeys(("n_inner", "ffn_hidden_size", "num_kv_heads"), (None,)),
    **dict.fromkeys(("hidden_size_per_layer_input", "zero_expert_num", "num_shared_experts"), (0,)),
    **dict.fromkeys(("num_kv_shared_layers", "altup_num_inputs", "laurel_rank", "hc_mult", "gated_norm_rank"), (2,)),
    **dict.fromkeys(("moe_layer_interval", "moe_layer_start_index", "interleave_moe_layer_step"), (2,)),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers"), (0, 2)),
    "mlp_layer_types": (["sparse", "dense"] * 2, None),
    "indexer_types": (["full", "shared"] * 2,),
    "gating": (False, "per-head", "per-element"),
    "num_attention_heads_per_layer": ([4, 2, 4, 2],),
    "moe_layers": ([1, 3],),
    "moe_topk": ([2, 1, 2, 1],),
    "num_layers_per_stack": (2,),
    "num_global_key_value_heads": (1,),
    "head_dim": (6, None),
    "shared_intermediate_size": (0,),
}
"""Values of keys beside those of the tiny models, for the types that know them and take them."""


UNBUILT = {
    ("helium", "head_dim"), ("gemma3n_text", "hidden_size_per_layer_input"), ("hy_v3", "num_shared_experts"),
    ("minimax_m3_vl_text", "shared_intermediate_size"),
}  # fmt: skip
"""Keys whose other values transformers takes, and cannot compute with."""
MISSING: Mapping[str, dict[str, Any]] = {
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "dots1": {"n_shared_experts": 2, "n_routed_experts": 128, "num_experts_per_tok": 6},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    **{kind: {"head_dim": 128} for kind in ("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral")},
}
"""What transformers has no sizes for."""


ZAMBA: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4, "n_mamba_heads": 4, "mamba_d_state": 8,
    "vocab_size": 64, "num_mem_blocks": 2, "adapter_rank": 3,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid", "hybrid"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"use_shared_attention_adapter": True}, {"num_mem_blocks": 1}, {"add_bias_linear": True}], ids=str
)
def test_blocks_that_take_turns_are_counted_once(changes: dict[str, Any]) -> None:
    config = transformers.Zamba2Config(**ZAMBA | changes)
    assert counted(json.loads(config.to_json_string())) == names_and_sizes(built(config))


def default(kind: str) -> PretrainedConfig:
    """The sizes that transformers has for a type: those of a published model."""
    return getattr(transformers, CONFIG_MAPPING_NAMES[kind])(**MISSING.get(kind, {}))


def changed(kind: str, key: str, value: Any) -> PretrainedConfig | None:
    if key == "full_attn_idxs":  # which older files have in place of layer_types
        return tiny_config(kind, layer_types=None, full_attn_idxs=value)
    try:
        return tiny_config(kind, **{key: value})
    except (StrictDataclassError, TypeError, ValueError):
        return None


@pytest.mark.parametrize("kind", EVERY)
def test_names_and_sizes_are_those_of_the_torch_model(kind: str) -> None:
    known = default(kind).to_dict()
    configs = [tiny_config(kind), *([tiny_config(kind, num_local_experts=0)] if kind == "granitemoehybrid" else [])]
    for key, values in CHANGES.items():
        configs += [changed(kind, key, value) for value in values if key in known and (kind, key) not in UNBUILT]
    taken = [config for config in configs if config is not None]
    assert len(taken) > 2
    for config in taken:
        try:
            torch_model = built(config)
        except (RuntimeError, TypeError, ValueError):  # transformers takes the values and builds nothing of them
            continue
        model = json.loads(config.to_json_string())
        assert counted(model) == names_and_sizes(torch_model), model


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMS)
def test_a_model_of_published_size_counts_as_in_torch(kind: str) -> None:
    config = default(kind)
    assert counted(json.loads(config.to_json_string())) == names_and_sizes(built(config))


_DELTA = {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128}
PUBLISHED: Mapping[str, tuple[float, dict[str, Any]]] = {
    "Qwen3-Next-80B-A3B": (79.7e9, {
        "model_type": "qwen3_next", "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 5120,
        "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_value_head_dim": 128, "num_experts": 512,
        "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False,
    } | _DELTA),
    "Kimi-Linear-48B-A3B": (49.1e9, {
        "model_type": "kimi_linear", "vocab_size": 163_840, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 72,
        "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1, "moe_intermediate_size": 1024,
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "tie_word_embeddings": False,
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
            "kda_layers": [layer for layer in range(1, 27) if layer % 4], "short_conv_kernel_size": 4,
        },
    }),
    "NVIDIA-Nemotron-Nano-9B-v2": (8.9e9, {
        "model_type": "nemotron_h", "vocab_size": 131_072, "hidden_size": 4480, "intermediate_size": 15_680,
        "num_hidden_layers": 56, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "mamba_num_heads": 128, "mamba_head_dim": 80, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
        "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        "tie_word_embeddings": False,
    }),
    "Bamba-9B": (9.78e9, {
        "model_type": "bamba", "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "attn_layer_indices": [9, 18, 27],
        "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_chunk_size": 256,
    }),
    "LFM2-1.2B": (1.17e9, {
        "model_type": "lfm2", "vocab_size": 65_536, "hidden_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "conv_L_cache": 3, "block_auto_adjust_ff_dim": True,
        "block_ff_dim": 12_288,
        "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "tie_embedding": True,
    }),
    "Jamba-v0.1": (51.6e9, {
        "model_type": "jamba", "vocab_size": 65_536, "hidden_size": 4096, "intermediate_size": 14_336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_experts": 16,
        "num_experts_per_tok": 2, "mamba_dt_rank": 256,
    }),
    "recurrentgemma-2b": (2.68e9, {
        "model_type": "recurrent_gemma", "vocab_size": 256_000, "hidden_size": 2560, "intermediate_size": 15_360,
        "num_hidden_layers": 26, "num_attention_heads": 10, "num_key_value_heads": 1, "lru_width": 2560,
        "_block_types": ["recurrent", "recurrent", "attention"],
    }),
}  # fmt: skip
"""The keys of files as their authors wrote them, and the parameters that they name."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_file_of_its_authors_counts_as_in_torch_and_as_they_say(name: str) -> None:
    parameters, model = PUBLISHED[name]
    keywords = {key: value for key, value in model.items() if key not in ("model_type", "_block_types")}
    config = getattr(transformers, CONFIG_MAPPING_NAMES[model["model_type"]])(**keywords)
    sizes = counted(model)
    assert sizes == names_and_sizes(built(config))
    assert sizes.total() == pytest.approx(parameters, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("qwen3_next", {"linear_num_value_heads": None}, "config.json lacks linear_num_value_heads"),
        ("qwen3_next", {"hidden_size": "32"}, "config.json: hidden_size is not a whole number from 1 to 10000000"),
        ("qwen3_next", {"layer_types": ["conv"] * 4}, "config.json: the memory formulas know no layers of kind conv"),
        ("qwen3_next", {"layer_types": ["conv"]}, "config.json: layer_types is not a list with one text per layer"),
        ("qwen3_next", {"mlp_only_layers": 1}, "config.json: mlp_only_layers is not a list of whole numbers"),
        ("bamba", {"num_hidden_layers": 10**9}, "config.json: num_hidden_layers is not a whole number from 1 to 10000"),
        ("bamba", {"mamba_proj_bias": "no"}, "config.json: mamba_proj_bias is neither true nor false"),
        ("nemotron_h", {"layers_block_type": None}, "config.json lacks hybrid_override_pattern"),
        ("nemotron_h", {"hybrid_override_pattern": "M?"}, "config.json: the memory formulas know no layers of kind ?"),
        ("lfm2", {"block_ffn_dim_multiplier": "1"}, "config.json: block_ffn_dim_multiplier is not a number above 0"),
        ("phimoe", {"lm_head_bias": "x"}, "config.json: lm_head_bias is neither true nor false"),
        ("recurrent_gemma", {"block_types": 3}, "config.json: block_types is not a list of texts"),
        ("hunyuan_v1_moe", {"moe_topk": [2]}, "config.json: moe_topk is not a list with one number per layer"),
    ],
    ids=str,
)
def test_a_damaged_config_is_told_of_by_its_keys(kind: str, change: dict[str, Any], why: str) -> None:
    model = json.loads(tiny_config(kind).to_json_string()) | change
    assert model_shape(model) == (None, why)


@pytest.mark.parametrize("kind", ["phi", "gptj"])
def test_a_bias_of_the_head_is_cut_as_the_head_is(kind: str) -> None:
    """Megatron knows none of them; the plan that says so has their memory by then."""
    shape, _ = model_shape(json.loads(tiny_config(kind).to_json_string()))
    assert shape is not None
    *_, head, bias = shape.weights
    assert (head.name, bias.name) == ("lm_head.weight", "lm_head.bias")
    assert rank_elements(bias, 4) * shape.hidden_size == rank_elements(head, 4) > head.num_elements / 8


def test_experts_per_token_of_a_layer_may_be_a_list() -> None:
    tiny = json.loads(tiny_config("hunyuan_v1_moe").to_json_string())
    shape, _ = model_shape(tiny | {"moe_topk": [2, 1, 2, 1]})
    assert shape is not None and [layer.experts_per_token for layer in shape.layers] == [2, 1, 2, 1]


@pytest.mark.slow
def test_a_model_with_pictures_and_recurrences_has_both() -> None:
    """Qwen3.5 of 9 B by the sizes that transformers has."""
    config = default("qwen3_5")
    sizes = counted(json.loads(config.to_json_string()))
    with torch.device("meta"):
        assert sizes == names_and_sizes(AutoModelForImageTextToText.from_config(config))


@pytest.mark.parametrize(
    ("kind", "target", "said"),
    [
        ("nemotron_h", "q_proj, in_proj, up_proj, down_proj", ""),
        *((kind, "all-linear", "") for kind in ("qwen3_next", "jamba", "lfm2_moe", "kimi_linear", "recurrent_gemma")),
        *((kind, "q_proj, w1, w2, w3", "") for kind in ("lfm2_moe", "kimi_linear", "minimax")),
        ("granitemoehybrid", "q_proj, gate_proj", "no linear layer of the model is named gate_proj. It has "),
        *(
            (kind, "q_proj, block_sparse_moe.input_linear, output_linear", "")
            for kind in ("granitemoe", "granitemoehybrid")
        ),
        ("aria_text", "q_proj, fc1, fc2", ""),
        ("hy_v4", "q_b_proj, gate_up_proj", ""),
        ("llama4_text", "q_proj, gate_up_proj", "no linear layer of the model is named gate_up_proj. It has "),
        ("jamba", "q_proj, up_proj, down_proj", "gate_proj and up_proj of experts are one matrix"),
        ("qwen3_next", "in_proj_qkv", "no linear layer of the model is named in_proj_qkv. It has "),
    ],
)
def test_layers_of_models_with_recurrences_are_known(kind: str, target: str, said: str) -> None:
    worker = of_run({"actor_train.model_args": {"lora_target": target}}).actor_train
    tiny = json.loads(tiny_config(kind).to_json_string())
    found = [problem.text for problem in lora_model_problems(Choice(ACTOR_TRAIN, worker), tiny)]
    assert [said in text for text in found] == [True] * bool(said), found


@pytest.mark.parametrize("kind", ["granitemoeshared", "granitemoehybrid"])
def test_a_plain_name_of_granites_experts_names_what_every_token_meets_too(kind: str) -> None:
    """As peft has it, which matches the last parts of a name."""
    shape, _ = model_shape(json.loads(tiny_config(kind).to_json_string()))
    assert shape is not None
    experts, shared = "block_sparse_moe.input_linear", "shared_mlp.input_linear.weight"
    for target, chosen in (("input_linear", {experts, shared}), (experts, {experts})):
        args = ModelArgs(model_name_or_path="a/b", lora_target=(target,))
        names = {weight.name for weight in adapted(shape, args) if weight.layer == 0}
        assert names == {f"model.layers.0.{name}" for name in chosen}


@pytest.mark.slow
def test_experts_of_gemma_4_are_beside_its_mlp() -> None:
    experts = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
    config = tiny_config("gemma4_text", **experts)
    assert counted(json.loads(config.to_json_string())) == names_and_sizes(built(config))


@pytest.mark.parametrize(("name", "used"), [("Qwen3-Next-80B-A3B", 3.56e9), ("Kimi-Linear-48B-A3B", 3.11e9)])
def test_a_token_meets_the_parameters_that_the_name_says(name: str, used: float) -> None:
    """3 B and those of the head, which the names leave out."""
    shape, why_not = model_shape(PUBLISHED[name][1])
    assert shape is not None, why_not
    assert matrix_elements(shape) == pytest.approx(used, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        ("gemma3n_text", "model.embed_tokens_per_layer.weight"),
        ("gpt2", "transformer.wpe.weight"),
        ("opt", "model.decoder.embed_positions.weight"),
    ],
)
def test_tables_beside_the_embedding_are_looked_up(kind: str, table: str) -> None:
    """Gemma-3n-E4B has 2.3 B parameters in such a table, and 4.5 B beside it."""
    shape, _ = model_shape(json.loads(tiny_config(kind).to_json_string()))
    assert shape is not None and shape.ties_head
    (size,) = (weight.num_elements for weight in shape.weights if weight.name == table)
    matrices = [weight for weight in shape.weights if len(weight.shape) > 1]
    assert matrix_elements(shape) == sum(weight.num_elements for weight in matrices) - size
