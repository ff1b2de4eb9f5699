"""vLLM on a CPU: a small model of each type gives the log-probs of transformers, before updates of its weights and
after them, by the names and in the form that trainers send. Types that vLLM has on GPUs alone the plan refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from roll.configs.sections.cluster import StrategyArgs, WorkerConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_facts import VLLM_NOT_ON_CPU, VLLM_REFUSED, WITHOUT_PREFIXES
from roll.configs.tables.roles import ROLES
from roll.distributed.strategy.vllm.args import cpu_model_problems, model_problems
from roll.models.loading import LoadedModel, load_policy
from roll.models.tiny import build_tokenizer
from roll.types.rollout import SamplingParams
from tests.helpers.engines import forward_log_probs, prompt
from tests.helpers.vllm_process import VllmProcess
from tests.parity.families.models import save_tiny, tiny_config
from tests.parity.families.page import record
from tests.parity.families.test_numbers import args_of

pytest.importorskip("vllm", reason="vllm is not installed")
TOLERANCE = 1e-5  # fp32; several kernels, sums in another order
_MIXTURE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 1}
_ROUTED |= {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1}
_MAMBA_2: dict[str, Any] = {"mamba_num_heads": 4, "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 1}
_MAMBA_2 |= {"layers_block_type": ["linear_attention", "full_attention", "mlp"]}
_MAMBA_2 |= {"time_step_min": 1e-30}  # transformers lets no time step be shorter; vLLM does
_WINDOW: dict[str, Any] = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}

_FEW: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_TIED = {"tie_word_embeddings": True}  # vLLM has no head of its own for them

_PLAIN = (
    *("arcee", "ernie4_5", "glm", "glm4", "granite", "hunyuan_v1_dense", "llama", "ministral3", "mistral", "olmo2"),
    *("phi3", "qwen2", "qwen3", "seed_oss", "smollm3"),
)
TYPES: dict[str, dict[str, Any]] = {
    **{kind: {} for kind in _PLAIN},
    "exaone4": _WINDOW,
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 64, "mamba_d_head": 16},
    "gemma2": _WINDOW | _TIED | {"query_pre_attn_scalar": 32},
    "gemma3_text": _WINDOW | {"query_pre_attn_scalar": 32},
    "gemma4_text": _WINDOW
    | {"global_head_dim": 32, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0}
    | _TIED,
    "glm4_moe": _ROUTED,
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    "granitemoe": _FEW,
    "granitemoehybrid": _MAMBA
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 64}
    | {"layer_types": ["mamba", "attention"]},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2},
    "ministral": {"sliding_window": 16},
    "mixtral": _FEW,
    "nemotron_h": _MAMBA_2,
    "olmo3": _WINDOW,
    "olmoe": _MIXTURE,
    "qwen2_moe": _MIXTURE | {"shared_expert_intermediate_size": 64},
    "qwen3_moe": _MIXTURE | {"decoder_sparse_step": 1},
}


_FAR_SHAPE: dict[str, Any] = {
    "vocab_size": 296, "vocab_size_per_layer_input": 296, "bos_token_id": None, "sliding_window": 16,
    "attention_bias": False, "mlp_bias": False, "qk_head_dim": 64, "rotary_dim": 32,
} | dict.fromkeys(("max_position_embeddings", "n_positions"), 2048) | dict.fromkeys(
    ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "mamba_d_ssm"), 64
) | dict.fromkeys(
    ("intermediate_size", "intermediate_size_mlp", "n_inner", "ffn_dim", "ffn_hidden_size"), 192
) | dict.fromkeys(
    ("num_attention_heads", "swa_num_attention_heads", "n_head", "n_heads", "attention_heads"), 2
) | dict.fromkeys(
    ("num_key_value_heads", "swa_num_key_value_heads", "num_global_key_value_heads"), 1
) | dict.fromkeys(
    ("head_dim", "swa_head_dim", "swa_v_head_dim", "global_head_dim", "qk_nope_head_dim", "qk_rope_head_dim",
     "v_head_dim", "kv_lora_rank", "q_lora_rank"),
    32,
) | dict.fromkeys(
    ("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size", "expert_ffn_hidden_size"),
    64,
)  # fmt: skip
"""Sizes that vLLM's kernels have. It has no biases where most types have none but could: they are off."""
_LATENT = {"num_key_value_heads": 2, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "head_dim": 64, "qk_head_dim": 96}
_TWO_ROPES: dict[str, dict[str, Any]] = {
    "full_attention": {"rope_type": "default", "rope_theta": 5e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
_LONG = {"sliding_window": 64}  # beyond the rows: vLLM's window has one token more than transformers'
FAR: dict[str, dict[str, Any]] = {
    **{
        kind: {}
        for kind in (
            *("apertus", "bitnet", "bloom", "cohere", "dots1", "ernie4_5_moe", "exaone_moe", "flex_olmo", "gemma"),
            *("gpt_bigcode", "gpt_neox", "gptj", "granite_swa", "granitemoe_swa", "granitemoeshared", "helium"),
            *("jais2", "laguna", "lfm2_moe", "mellum", "nanochat", "nemotron", "olmo", "opt", "phi", "solar_open"),
            *("starcoder2", "vaultgemma"),
        )
    },
    "afmoe": {},
    "cohere2": _LONG,
    "cohere2_moe": _LONG,
    "cwm": {"bos_token_id": 1, "eos_token_id": [2]},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "falcon": {"ffn_hidden_size": 256, "alibi": False},
    "glm4_moe_lite": _LATENT | {"rms_norm_eps": 1e-6},  # transformers takes it for latents, whatever is written
    "gpt2": {"scale_attn_by_inverse_layer_idx": False},
    "hy_v3": {},
    "hyperclovax": {},
    "lfm2": {"block_auto_adjust_ff_dim": False},
    "llama4_text": {"attention_chunk_size": 128, "num_experts_per_tok": 1, "attn_temperature_tuning": False},
    "mamba2": {},
    "mimo_v2_flash": {  # windows have twice as many keys
        "num_attention_heads": 4,
        "routed_scaling_factor": 1.0,
        "rope_parameters": {kind: turns | {"partial_rotary_factor": 0.5} for kind, turns in _TWO_ROPES.items()},
    },
    "minimax_m2": {},
    "persimmon": {"qk_layernorm": True},
    "phimoe": {"attention_bias": True, "lm_head_bias": True},
    "stablelm": {"qk_layernorm": False},
    "youtu": _LATENT,
}
"""Types as tests/parity/families/models.py makes them, with numbers far from neutral, but for these."""
_SPREADS: dict[str, float] = dict.fromkeys(("glm4_moe_lite", "hyperclovax", "nemotron"), 0.08)  # lose digits
_ROUTES = {"first_k_dense_replace": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
PUBLISHED: dict[str, dict[str, Any]] = {
    "afmoe": {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1},
    "deepseek_v2": {"first_k_dense_replace": 1, "moe_layer_freq": 1},
    "deepseek_v3": _ROUTES | {"moe_layer_freq": 1},
    "glm4_moe_lite": _ROUTES,
    "hy_v3": {"first_k_dense_replace": 1, "expert_hidden_dim": 64, "route_norm": True, "qk_norm": True},
    "lfm2": {"block_dim": 64, "block_ff_dim": 192, "conv_dim": 64},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1, 0, 1], "moe_layer_freq": [0, 1, 1, 1], "sliding_window_size": 16,
        "layernorm_epsilon": 1e-5, "rope_theta": 5e6, "swa_rope_theta": 1e4, "partial_rotary_factor": 0.5,
        "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 32, "swa_v_head_dim": 32,
        "add_swa_attention_sink_bias": True,
    },
    "minimax_m2": {"use_routing_bias": True, "rotary_dim": 16, "scoring_func": "sigmoid"},
    "phimoe": {"architectures": ["PhiMoEForCausalLM"]},
}  # fmt: skip
"""What vLLM reads in the config.json of published models, and transformers neither needs nor writes."""


@dataclass(frozen=True)
class Engine:
    vllm: VllmProcess
    loaded: LoadedModel

    def gap(self) -> float:
        """The largest difference of log-probs of sampled tokens from those of a plain forward pass."""
        prompts = [prompt(length) for length in (5, 17, 40)]
        answers = self.vllm.generate(prompts, SamplingParams(max_new_tokens=8, seed=100, ignore_eos=True))
        gaps = [
            np.abs(answer.log_probs - forward_log_probs(self.loaded.pretrained, ids, answer.token_ids))
            for ids, answer in zip(prompts, answers, strict=True)
        ]
        return float(np.concatenate(gaps).max())  # NaN if there is one

    def update(self, seed: int) -> None:
        """Other weights, for both."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.loaded.module.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
            for _, buffer in self.loaded.kept_buffers:
                buffer.add_(0.1 * torch.randn(buffer.shape, generator=generator))
        own = dict(self.loaded.module.named_parameters())
        named = [(name, own[mine].detach().clone()) for mine, name in self.loaded.hf_names.items()]
        self.vllm.update(self.loaded.in_checkpoint_form([*named, *self.loaded.kept_buffers]))


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    kind = request.param
    save(kind, tmp_path)
    loaded = load_policy(args_of(tmp_path).model_copy(update={"disable_gradient_checkpointing": True}))
    loaded.module.eval()
    more: dict[str, Any] = {"enable_prefix_caching": False} if kind in WITHOUT_PREFIXES else {}
    vllm = VllmProcess(tmp_path, **more)
    yield Engine(vllm, loaded)
    vllm.close()


def save(kind: str, directory: Path) -> None:
    """Two layers of the type, with heads of the sizes that vLLM's kernels have."""
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(directory)
    own: dict[str, Any] = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    if kind in FAR:
        _save_far(kind, directory, _FAR_SHAPE | own)
        return
    shape: dict[str, Any] = {
        "vocab_size": 296, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "head_dim": 32,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 2048, "bos_token_id": None,
        "tie_word_embeddings": False,
    }  # fmt: skip
    config = AutoConfig.for_model(kind, **shape | own | TYPES[kind])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.12 * noise if parameter.dim() > 1 else parameter + 0.1 * noise)
    model.save_pretrained(directory)


def _save_far(kind: str, directory: Path, shape: dict[str, Any]) -> None:
    """Four layers of the type, with every number of config.json far from neutral that vLLM reads."""
    known = tiny_config(kind)
    follows = {key for key in shape if isinstance(getattr(type(known), key, None), property)}
    written = known.to_dict()
    sizes = {key: shape[key] for key in shape.keys() - follows if key in written or hasattr(known, key)}
    save_tiny(kind, directory, spread=_SPREADS.get(kind, 0.12), **sizes | FAR[kind])
    path = directory / "config.json"
    config = json.loads(path.read_text()) | {"architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]]}
    path.write_text(json.dumps(config | PUBLISHED.get(kind, {})))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", sorted(TYPES | FAR), indirect=True)
def test_log_probs_are_those_of_the_model_before_and_after_updates(
    engine: Engine, request: pytest.FixtureRequest
) -> None:
    gaps = [engine.gap()]
    for seed in (1, 2):
        engine.update(seed)
        gaps.append(engine.gap())
    assert all(gap < TOLERANCE for gap in gaps), gaps
    record(request.node.callspec.params["engine"], "vllm", max(gaps))


@pytest.mark.parametrize("kind", sorted(VLLM_NOT_ON_CPU))
def test_a_type_that_vllm_has_on_gpus_alone_is_refused_on_a_cpu(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    choice = Choice(ROLES["actor_infer"], WorkerConfig(model_args=args_of(tmp_path)))
    (problem,) = cpu_model_problems(choice, {"model_type": kind})
    assert f"vllm cannot sample from {kind} models on a CPU: {VLLM_NOT_ON_CPU[kind]}" in problem.text
    assert problem.of == "place" and kind not in TYPES | FAR


@pytest.mark.parametrize("kind", sorted(VLLM_REFUSED))
def test_a_type_that_vllm_cannot_sample_from_is_refused_on_any_device(kind: str, tmp_path: Path) -> None:
    strategy = StrategyArgs(strategy_name="vllm")
    choice = Choice(ROLES["actor_infer"], WorkerConfig(model_args=args_of(tmp_path), strategy_args=strategy))
    model = {"model_type": kind, "architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]]}
    (problem,) = model_problems(choice, model)
    assert f"vLLM cannot sample from {kind} models: {VLLM_REFUSED[kind]}. Use " in problem.text
    assert kind not in TYPES | FAR
