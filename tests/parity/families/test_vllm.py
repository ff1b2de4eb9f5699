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

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_facts import STATES, VLLM_NOT_ON_CPU
from roll.configs.tables.roles import ROLES
from roll.distributed.strategy.vllm.args import cpu_model_problems
from roll.models.loading import LoadedModel, load_policy
from roll.models.tiny import build_tokenizer
from tests.helpers import engines
from tests.helpers.engines import EngineHarness, forward_log_probs, prompt
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


@dataclass(frozen=True)
class Engine:
    harness: EngineHarness
    loaded: LoadedModel

    def gap(self) -> float:
        """The largest difference of log-probs of sampled tokens from those of a plain forward pass."""
        requests = [self.harness.request(prompt(length), 2, max_new_tokens=8) for length in (5, 17, 40)]
        found = zip(requests, self.harness.generate(*requests, timeout_s=120), strict=True)
        pairs = [(request.prompt_ids, answer) for request, answers in found for answer in answers]
        plain = [forward_log_probs(self.loaded.pretrained, ids, answer.token_ids) for ids, answer in pairs]
        return max(float(np.abs(a.log_probs - want).max()) for (_, a), want in zip(pairs, plain, strict=True))

    def update(self, seed: int) -> None:
        """Other weights, for both."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.loaded.module.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
        own = dict(self.loaded.module.named_parameters())
        named = [(name, own[mine].detach().clone()) for mine, name in self.loaded.hf_names.items()]
        weights = self.loaded.in_checkpoint_form([*named, *self.loaded.kept_buffers])
        self.harness.version += 1
        self.harness.run(self.harness.send(weights, "memory", Path(), self.harness.version))


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    kind = request.param
    monkeypatch.setattr(engines, "BUCKET_BYTES", 80_000)
    save(kind, tmp_path)
    loaded = load_policy(args_of(tmp_path).model_copy(update={"disable_gradient_checkpointing": True}))
    loaded.module.eval()
    more: dict[str, Any] = {"enable_prefix_caching": False} if kind in STATES else {}
    harness = EngineHarness("vllm", tmp_path, **more)
    yield Engine(harness, loaded)
    harness.close()


def save(kind: str, directory: Path) -> None:
    """Two layers of the type, with heads of the sizes that vLLM's kernels have."""
    tokenizer = build_tokenizer()
    shape: dict[str, Any] = {
        "vocab_size": 296, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "head_dim": 32,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 2048, "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "tie_word_embeddings": False,
    }  # fmt: skip
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape | TYPES[kind]), dtype=torch.float32)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.12 * noise if parameter.dim() > 1 else parameter + 0.1 * noise)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", sorted(TYPES), indirect=True)
def test_log_probs_are_those_of_the_model_before_and_after_updates(
    engine: Engine, request: pytest.FixtureRequest
) -> None:
    gaps = [engine.gap()]
    for seed in (1, 2):
        engine.update(seed)
        gaps.append(engine.gap())
    assert max(gaps) < TOLERANCE, gaps
    record(request.node.callspec.params["engine"], "vllm", max(gaps))


@pytest.mark.parametrize("kind", sorted(VLLM_NOT_ON_CPU))
def test_a_type_that_vllm_has_on_gpus_alone_is_refused_on_a_cpu(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    choice = Choice(ROLES["actor_infer"], WorkerConfig(model_args=args_of(tmp_path)))
    (problem,) = cpu_model_problems(choice, {"model_type": kind})
    assert f"vllm cannot sample from {kind} models on a CPU: {VLLM_NOT_ON_CPU[kind]}" in problem.text
    assert problem.of == "place" and kind not in TYPES
