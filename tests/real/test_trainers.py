"""One update of pretrained weights by every trainer, against Hugging Face and torch.optim.AdamW in one process, in
fp32, on eight rows of real text. reports/measured.md has what was measured."""

from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.helpers.processes import RankPool
from tests.helpers.real_models import real_model
from tests.parity.megatron import ranks as megatron
from tests.parity.strategies import runs
from tests.parity.strategies.adapters import LORA, an_adapter
from tests.real import ranks
from tests.real.ranks import Differences
from tests.real.texts import rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
Pools = Callable[[int], RankPool]
LIMIT_S = 600.0

TRAINERS: dict[str, tuple[int, dict[str, Any]]] = {  # ranks, settings
    "zero0": (1, {"stage": 0}),
    "zero1": (2, {"stage": 1}),
    "zero2": (2, {"stage": 2}),
    "zero3": (2, {"stage": 3}),
    "fsdp2-1": (1, {"fsdp2": {}}),
    "fsdp2-2": (2, {"fsdp2": {}}),
    "megatron-tp3": (3, {"megatron": {"tensor_model_parallel_size": 3}}),  # SmolLM2 has nine heads
    "megatron-pp2": (2, {"megatron": {"pipeline_model_parallel_size": 2}}),
}
EMBEDDING = "model.embed_tokens"  # two thirds of Gemma-3's weights, which stay in these tests
# Twice what was measured.
FP32 = Differences(gradients=4e-5, worst_gradient=2e-4, weights=2e-5, log_probs=1e-4)
BF16 = Differences(gradients=0.25, worst_gradient=0.7, weights=0.4, log_probs=1.2)


@pytest.fixture(scope="module")
def reference(rank_pool: Pools, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """reference("smollm2") -> a folder; made once."""
    made: dict[tuple[str, Path | None], Path] = {}

    def make(model_name: str, adapter: Path | None = None) -> Path:
        if (model_name, adapter) not in made:
            directory, model_dir = tmp_path_factory.mktemp("reference"), real_model(model_name)
            frozen = (EMBEDDING,) if model_name == "gemma3" else ()
            arguments = (model_dir, rows(model_dir), directory, adapter, frozen)
            rank_pool(1).run(ranks.write_reference, *arguments, timeout_s=LIMIT_S)
            made[model_name, adapter] = directory
        return made[model_name, adapter]

    return make


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = AutoModelForCausalLM.from_pretrained(real_model("smollm2"), dtype=torch.float32)
    return an_adapter(model, tmp_path_factory.mktemp("adapter"))


def compare(pools: Pools, name: str, reference: Path, model_name: str = "smollm2", **options: Any) -> Differences:
    num_ranks, settings = TRAINERS[name]
    kind = megatron.Run if "megatron" in settings else runs.Run
    model_dir = real_model(model_name)
    run = kind(model_dir, given=rows(model_dir), split=(3, 1), **settings, **options)
    return pools(num_ranks).run(ranks.differences, run, reference, timeout_s=LIMIT_S)[0]


def assert_within(found: Differences, limits: Differences) -> None:
    assert all(value < limit for value, limit in zip(astuple(found), astuple(limits), strict=True)), found


@pytest.mark.parametrize("name", list(TRAINERS))
def test_an_update_equals_torch_adamw(name: str, rank_pool: Pools, reference: Callable[..., Path]) -> None:
    assert_within(compare(rank_pool, name, reference("smollm2")), FP32)


@pytest.mark.parametrize("name", ["zero2", "fsdp2-2", "megatron-pp2"])
def test_an_update_in_bf16_stays_near_fp32(name: str, rank_pool: Pools, reference: Callable[..., Path]) -> None:
    assert_within(compare(rank_pool, name, reference("smollm2"), model={"dtype": "bf16"}), BF16)


@pytest.mark.parametrize("name", ["zero2", "fsdp2-2", "megatron-tp3"])
def test_an_update_of_adapters_equals_peft(
    name: str, rank_pool: Pools, reference: Callable[..., Path], adapter: Path
) -> None:
    model = LORA | {"adapter_name_or_path": str(adapter)}
    assert_within(compare(rank_pool, name, reference("smollm2", adapter), model=model), FP32)


def test_an_update_of_a_model_with_windows(rank_pool: Pools, reference: Callable[..., Path]) -> None:
    """Gemma-3, on a row that is longer than its windows. Megatron has no such family."""
    model = {"freeze_module_prefix": EMBEDDING}
    assert_within(compare(rank_pool, "zero3", reference("gemma3"), "gemma3", model=model), FP32)
