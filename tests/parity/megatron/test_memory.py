"""What the plan says of a rank's memory against what real ranks hold, tensor by tensor. The device does not matter for
that. Not covered: what passes need beside the states, padding between the tensors of a buffer, and the number that each
expert of GLM and DeepSeek has beside its weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roll.configs.memory.megatron import stage_weights, train_memory
from roll.configs.memory.model_shape import model_shape
from roll.configs.memory.parts import RoleFacts, total
from tests.helpers.processes import RankPool
from tests.parity.megatron import prediction
from tests.parity.megatron.layouts import BF16, EP2, PP2, SHARED, TP2
from tests.parity.megatron.ranks import Run, one_update, trainer

Pools = Callable[[int], RankPool]


def held(run: Run) -> dict[str, int]:
    """Bytes of one rank after an update."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        named = [item for chunk in strategy._chunks for item in chunk.named_parameters()]
        parameters = [parameter for name, parameter in named if not name.endswith(".expert_bias")]
        weights = {id(parameter) for parameter in parameters}
        optimizer = 0
        for part in strategy._updater.optimizer.chained_optimizers:
            for parameter, state in part.optimizer.state.items() if part.optimizer is not None else ():
                is_copy = id(parameter) not in weights and parameter.dtype != parameters[0].dtype
                optimizer += parameter.nbytes * is_copy + state["exp_avg"].nbytes + state["exp_avg_sq"].nbytes
        return {
            "weights": sum(parameter.nbytes for parameter in parameters),
            "gradients": sum(parameter.main_grad.nbytes for parameter in parameters if parameter.requires_grad),
            "optimizer": optimizer,
        }


@pytest.mark.gate("tensor-frozen", "shared-bf16")
@pytest.mark.parametrize(
    ("world_size", "family", "changes", "megatron", "model"),
    [
        (2, "llama", {}, TP2, {"freeze_module_prefix": "model.embed_tokens"}),
        (2, "qwen3", {}, SHARED, BF16),
        (4, "qwen3_moe", {}, TP2 | EP2 | SHARED, BF16),
        (4, "qwen3_moe", {"tie_word_embeddings": True}, PP2 | EP2, {}),
        (2, "qwen2_moe", {}, TP2, {}),
        (2, "glm4", {}, TP2 | SHARED, BF16),
        (2, "deepseek_v2", {"q_lora_rank": None}, TP2 | {"expert_tensor_parallel_size": 1}, {}),
        (2, "gpt_oss", {}, EP2 | SHARED, BF16),
        (2, "qwen2", {}, TP2, {"lora_target": "o_proj", "additional_target": "q_proj, k_proj, v_proj"}),
    ],
    ids=[
        "tensor-frozen",
        "shared-bf16",
        "tensor-expert-bf16",
        "pipeline-tied",
        "shared-expert",
        "fused-bf16",
        "latent",
        "sinks-bf16",
        "matrix-and-bias-in-full",
    ],
)
def test_ranks_hold_what_the_plan_says(
    world_size: int,
    family: str,
    changes: dict[str, Any],
    megatron: dict[str, Any],
    model: dict[str, Any],
    rank_pool: Pools,
    family_dir: Callable[..., Path],
) -> None:
    run = Run(family_dir(family, **changes), megatron, model=model, vocab_size=100)
    compare(run, rank_pool(world_size))


@pytest.mark.gate("glm4_moe-None")
@pytest.mark.parametrize(
    ("family", "frozen"), [("glm4_moe", None), ("deepseek_v3", None), ("glm4_moe", "model.layers.2.")]
)
def test_a_head_that_is_trained_and_its_copy_of_the_embedding_count(
    family: str, frozen: str | None, rank_pool: Pools, tmp_path: Path
) -> None:
    model = prediction.make(tmp_path / "model", family)
    given = {"freeze_module_prefix": frozen} if frozen else {}
    compare(Run(model, PP2, model=given, vocab_size=100, head="joint"), rank_pool(2))


def compare(run: Run, ranks: RankPool) -> None:
    world_size = ranks.world_size
    found = ranks.run(held, run)
    shape, _ = model_shape(json.loads((run.model_dir / "config.json").read_text()))
    assert shape is not None
    worker = run.config().model_copy(update={"world_size": world_size})
    facts = RoleFacts(worker, shape, "train", world_size, shares_devices=False, train=run.plan(1))

    stages = list(stage_weights(facts))
    ranks_per_stage = world_size // len(stages)
    for rank, bytes_of in enumerate(found):
        stage = stages[rank // ranks_per_stage]
        assert bytes_of["weights"] == facts.dtype_bytes * stage.all
        assert bytes_of["gradients"] == 4 * stage.trained
    largest = train_memory(facts).states
    assert total(largest["weights"]) == max(bytes_of["weights"] for bytes_of in found)
    if len(stages) == 1:
        assert world_size * total(largest["optimizer"]) == sum(bytes_of["optimizer"] for bytes_of in found)
