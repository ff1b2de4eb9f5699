"""Every family of models: scores against Hugging Face, weights there and back bit by bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.helpers.cases import cases
from tests.helpers.processes import RankPool
from tests.parity.megatron import models, ranks
from tests.parity.megatron.layouts import PP2
from tests.parity.megatron.layouts import TP2_SP as TP2
from tests.parity.megatron.ranks import Run
from tests.parity.strategies.reference import TEMPERATURE, naive_log_probs, rows

Pools = Callable[[int], RankPool]
LATENT_YARN = models.YARN_ROPE | {"mscale": 1.0, "mscale_all_dim": 1.0}
WIDE_ROPE = {"rope_type": "default", "rope_theta": 5e3, "partial_rotary_factor": 0.75}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "llama-llama3-rope": ("llama", {"rope_parameters": models.LLAMA3_ROPE}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": models.YARN_ROPE}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "mixtral": ("mixtral", {}),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe-dense-first": ("qwen3_moe", {"mlp_only_layers": [0], "norm_topk_prob": False}),
    "qwen2_moe": ("qwen2_moe", {}),
    "qwen2_moe-every-second": ("qwen2_moe", {"decoder_sparse_step": 2, "norm_topk_prob": False}),
    "glm": ("glm", {}),
    "glm-tp2": ("glm", {"attention_bias": False, "rope_parameters": WIDE_ROPE}),
    "glm4": ("glm4", {}),
    "glm4-tp2": ("glm4", {"tie_word_embeddings": True}),
    "glm4_moe": ("glm4_moe", {}),
    "glm4_moe-plain": (
        "glm4_moe",
        {"n_group": 1, "topk_group": 1, "use_qk_norm": False, "attention_bias": False, "head_dim": 32},
    ),
    "deepseek_v2": ("deepseek_v2", {"q_lora_rank": None, "n_shared_experts": 2}),
    "deepseek_v2-groups": ("deepseek_v2", {"topk_method": "group_limited_greedy", "rope_parameters": LATENT_YARN}),
    "deepseek_v3": ("deepseek_v3", {"rope_parameters": LATENT_YARN}),
    "deepseek_v3-tp2": ("deepseek_v3", {"rms_norm_eps": 1e-2, "rope_parameters": LATENT_YARN | {"mscale": 0.7}}),
    "glm4_moe_lite": ("glm4_moe_lite", {}),
    "gpt_oss": ("gpt_oss", {}),
    "gpt_oss-tp2": ("gpt_oss", {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 1}),
    "gpt_oss-ep2": ("gpt_oss", {"sliding_window": 7, "swiglu_limit": 7.0}),
}
ON_TENSOR_RANKS = ("llama", "qwen2-tied", "qwen3", "mixtral", "qwen2_moe", "glm-tp2", "glm4-tp2", "glm4_moe")
ON_TENSOR_RANKS += ("deepseek_v3-tp2",)
LAYOUTS: dict[str, dict[str, Any]] = {
    "gpt_oss-tp2": TP2 | {"expert_tensor_parallel_size": 1},
    "gpt_oss-ep2": {"expert_model_parallel_size": 2},
}


@pytest.mark.gate("llama", "qwen2-tied", "qwen3_moe", "glm4-tp2", "deepseek_v3", "gpt_oss-ep2")
@pytest.mark.parametrize("name", list(FAMILIES))
def test_log_probs_entropy_and_exported_weights_are_the_models_own(
    name: str, rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    """fp32 against fp64: 1e-6 was measured on values of about 5. The vocabulary of 100 is padded to 112 on two ranks.
    Frequencies of scaled rotary embeddings differ from plain ones from the first position on."""
    family, changes = FAMILIES[name]
    model_dir = family_dir(family, **changes)
    settings = LAYOUTS.get(name, TP2 if name in ON_TENSOR_RANKS else PP2)
    run = Run(model_dir, settings, vocab_size=models.VOCAB_SIZE)
    outputs = rank_pool(2).run(ranks.scores_and_weights, run)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64, experts_implementation="eager")
    for row, (log_probs, entropy) in zip(rows(vocab_size=models.VOCAB_SIZE), outputs[1][0], strict=True):
        with torch.no_grad():
            want = naive_log_probs(model, row, TEMPERATURE)
        assert np.abs(log_probs[: row.input_ids.shape[1]] - want[0][0].numpy()).max() < 1e-5
        assert np.abs(entropy[: row.input_ids.shape[1]] - want[1][0].numpy()).max() < 1e-5
    stored = load_file(model_dir / "model.safetensors")
    assert outputs[0][1].keys() == stored.keys()
    assert all(np.array_equal(weights, stored[key].numpy()) for key, weights in outputs[0][1].items())
    assert outputs[1][1] == {}


def test_what_corrects_the_choice_of_experts_stays_in_fp32_in_a_bf16_model(
    rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    """Rounded, it would decide otherwise between experts that are close."""
    model_dir = family_dir("glm4_moe")
    run = Run(model_dir, PP2, model={"dtype": "bf16"}, vocab_size=models.VOCAB_SIZE)
    exported, kept = rank_pool(2).run(ranks.fresh_export, run)[0], models.corrections(model_dir)
    assert any((values != torch.from_numpy(values).bfloat16().float().numpy()).any() for values in kept.values())
    assert all(np.array_equal(exported[name], values) for name, values in kept.items())


def test_heads_for_further_tokens_are_saved_with_a_trained_model_as_they_were(rank_pool: Pools, tmp_path: Path) -> None:
    """From two stages of a pipeline, none of which knows them."""
    model_dir = models.make(tmp_path / "model", "qwen3")
    heads = {"mtp.fc.weight": torch.ones(2, 2), "model.layers.2.eh_proj.weight": torch.full((2, 4), 2.0)}
    file = model_dir / "model.safetensors"
    save_file(load_file(file) | heads, file, metadata={"format": "pt"})
    run = Run(model_dir, PP2, vocab_size=models.VOCAB_SIZE)
    exported = rank_pool(2).run(ranks.saved_after_an_update, run, tmp_path / "saved")[0]
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert saved.keys() == exported.keys() | heads.keys()
    assert all(torch.equal(saved[name], weights) for name, weights in heads.items())
    assert all(np.array_equal(saved[name].numpy(), weights) for name, weights in exported.items())
    AutoModelForCausalLM.from_pretrained(tmp_path / "saved")


def test_a_model_of_an_unknown_family_is_refused_with_the_known_ones(rank_pool: Pools, tmp_path: Path) -> None:
    from transformers import GPT2Config

    GPT2Config().save_pretrained(tmp_path)
    with pytest.raises(
        AssertionError,
        match="megatron knows no gpt2 models; it knows llama, qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe, glm, glm4",
    ):
        rank_pool(2).run(ranks.scores_and_weights, Run(tmp_path, TP2))


@cases("settings, message")
def test_sizes_that_do_not_divide_the_model_are_refused(
    settings: dict[str, Any], message: str, rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    with pytest.raises(AssertionError, match=message):
        rank_pool(4).run(ranks.scores_and_weights, Run(family_dir("qwen3"), settings))
