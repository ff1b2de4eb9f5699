"""Models with experts, and GLM-4 with norms behind attention and MLP, against Hugging Face + torch.optim.AdamW in one
process."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.processes import RankPool
from tests.parity.megatron import models, ranks
from tests.parity.megatron.compare import assert_same_training
from tests.parity.megatron.layouts import CP2, EP2
from tests.parity.megatron.layouts import TP2_SP as TP2
from tests.parity.megatron.ranks import Run
from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, Trace, rows, train_reference

Pools = Callable[[int], RankPool]
ETP1: dict[str, Any] = {"expert_tensor_parallel_size": 1}
GROUPED: dict[str, Any] = {"moe_grouped_gemm": True}
ALLGATHER: dict[str, Any] = {"moe_token_dispatcher_type": "allgather"}

CASES: dict[str, tuple[int, str, dict[str, Any], dict[str, Any]]] = {
    "ep2": (2, "qwen3_moe", EP2, {}),
    "ep2-allgather": (2, "qwen3_moe", EP2 | ALLGATHER, {"split": (3, 1)}),
    "tp2": (2, "mixtral", {"tensor_model_parallel_size": 2}, {}),  # sequence_parallel is on all the same
    "tp2-etp1-shared": (
        2, "qwen3_moe", TP2 | {"expert_tensor_parallel_size": 1, "use_distributed_optimizer": True}, {},
    ),
    "ep2-recompute": (2, "mixtral", EP2 | {"moe_layer_recompute": True}, {}),
    "ep2-dp2-shared": (4, "mixtral", EP2 | {"use_distributed_optimizer": True}, {}),
    "tp2-ep2": (4, "qwen3_moe", TP2 | EP2, {"split": (3, 1)}),
    "pp2-ep2": (4, "qwen3_moe", EP2 | {"pipeline_model_parallel_size": 2}, {"split": (3, 1)}),
    "ep2-dp2-packed-overlap": (4, "qwen3_moe", EP2 | {"overlap_grad_reduce": True}, {"packs": True}),
    "cp2-ep2": (2, "qwen3_moe", CP2 | EP2, {"split": (3, 1)}),
    "cp2-ep2-packed": (2, "mixtral", CP2 | EP2, {"packs": True}),
    "ep2-recompute-full": (2, "qwen3_moe", EP2 | {"recompute_granularity": "full"}, {}),
    "tp2-shared-expert": (2, "qwen2_moe", TP2, {"split": (3, 1)}),
    "ep2-dense-first": (2, "dense-first", EP2, {}),
    "ep2-corrected": (2, "glm4_moe", EP2, {"split": (3, 1)}),
    "tp2-corrected": (2, "glm4_moe", TP2 | {"use_distributed_optimizer": True}, {}),
    "tp2-latent": (2, "deepseek_v3", TP2, {"split": (3, 1)}),
    "pp2-latent": (2, "deepseek_v2", {"pipeline_model_parallel_size": 2}, {"packs": True}),
    "cp2-latent": (2, "deepseek_v3", CP2, {"packs": True}),
    "tp2-ep2-latent-recompute": (4, "deepseek_v3", TP2 | EP2 | {"recompute_granularity": "full"}, {"packs": True}),
    "tp2-normed": (2, "glm4", TP2 | {"use_distributed_optimizer": True}, {"split": (3, 1)}),
    "cp2-normed-packed-recompute": (2, "glm4", CP2 | {"recompute_granularity": "full"}, {"packs": True}),
    "tp2-sinks": (2, "gpt_oss", TP2 | ETP1, {"split": (3, 1)}),
    "ep2-sinks-packed": (2, "gpt_oss", EP2 | {"use_distributed_optimizer": True}, {"packs": True}),
    "pp2-sinks": (2, "gpt_oss", {"pipeline_model_parallel_size": 2}, {}),
    "cp2-sinks": (2, "gpt_oss", CP2, {"split": (3, 1)}),
    "cp2-sinks-packed": (2, "gpt_oss", CP2, {"packs": True}),
    "tp2-ep2-sinks-recompute": (4, "gpt_oss", TP2 | EP2 | ETP1 | {"recompute_granularity": "full"}, {"packs": True}),
    "ep2-grouped-packed-recompute": (
        2, "qwen3_moe", EP2 | GROUPED | {"recompute_granularity": "full"}, {"packs": True},
    ),
    "tp2-grouped-shared": (2, "mixtral", TP2 | GROUPED | {"use_distributed_optimizer": True}, {"split": (3, 1)}),
    "tp2-ep2-grouped-corrected": (4, "glm4_moe", TP2 | EP2 | GROUPED, {"split": (3, 1)}),
    "tp2-ep2-etp2-allgather": (4, "mixtral", TP2 | EP2 | ALLGATHER | {"expert_tensor_parallel_size": 2}, {}),
}  # fmt: skip


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("qwen3_moe", {}),
    "mixtral": ("mixtral", {}),
    "qwen2_moe": ("qwen2_moe", {}),
    "glm4": ("glm4", {}),
    "glm4_moe": ("glm4_moe", {}),
    "gpt_oss": ("gpt_oss", {}),
    "deepseek_v2": ("deepseek_v2", {"q_lora_rank": None, "topk_method": "group_limited_greedy"}),
    "deepseek_v3": ("deepseek_v3", {"rope_parameters": models.YARN_ROPE | {"mscale": 0.7, "mscale_all_dim": 1.0}}),
    "dense-first": ("qwen3_moe", {"mlp_only_layers": [0], "norm_topk_prob": False}),
}


SINKS = "model.layers.0.self_attn.sinks"


@pytest.fixture(scope="module")
def references(family_dir: Callable[..., Path]) -> Callable[[str], Trace]:
    @cache
    def made(model: str) -> Trace:
        family, changes = MODELS[model]
        loss, given, where = BentLoss(), rows(vocab_size=models.VOCAB_SIZE), family_dir(family, **changes)
        trace = train_reference(where, given, loss, [LEARNING_RATE] * 3, max_norm=0.5, weight_decay=0.1)
        kept = models.corrections(where)
        stored = [models.as_stored(parameters, family) | kept for parameters in trace.parameters]
        unmoved = {name: np.zeros_like(values) for name, values in kept.items()}
        return replace(trace, gradients=models.as_stored(trace.gradients, family) | unmoved, parameters=stored)

    return made


def test_the_gradients_norm_counts_the_sinks_of_all_tensor_parallel_ranks(
    rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    """Of a whole model they are too little of it to show: only the layers of queries, keys and values train here."""
    parts = ("self_attn.o_proj", "mlp", "input_layernorm", "post_attention_layernorm")
    frozen = [f"model.layers.{layer}.{part}" for layer in range(2) for part in parts]
    frozen += ["model.embed_tokens", "model.norm", "lm_head"]
    model = {"freeze_module_prefix": ",".join(frozen)}
    run = Run(family_dir("gpt_oss"), vocab_size=models.VOCAB_SIZE, model=model)
    one = rank_pool(1).run(ranks.weights_around_an_update, run)[0]
    assert np.abs(one.before[SINKS] - one.after[SINKS]).max() > LEARNING_RATE / 2
    two = rank_pool(2).run(ranks.weights_around_an_update, replace(run, megatron=TP2 | ETP1))[0]
    assert two.grad_norm == pytest.approx(one.grad_norm, rel=3e-6)


@pytest.mark.gate("ep2", "ep2-grouped-packed-recompute", "tp2-shared-expert", "cp2-latent", "ep2-sinks-packed")
@pytest.mark.proof
@pytest.mark.parametrize("name", list(CASES))
def test_experts_on_several_ranks_train_as_one_process_does(
    name: str, rank_pool: Pools, family_dir: Callable[..., Path], references: Callable[[str], Trace]
) -> None:
    """The reference computes every expert on every row in one process, so routing, the tokens' travel, gradients of
    experts that only some ranks hold and the norm over all of them are compared. Load balancing losses are off."""
    world_size, model, settings, options = CASES[name]
    family, changes = MODELS[model]
    where = family_dir(family, **changes)
    run = Run(where, settings, max_norm=0.5, weight_decay=0.1, vocab_size=models.VOCAB_SIZE, **options)
    assert_same_training(rank_pool(world_size).run(ranks.train, run)[0], references(model))
