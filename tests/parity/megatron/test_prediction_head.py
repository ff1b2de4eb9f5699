"""The head for the token after the next one under megatron_train, against Hugging Face's layer and AdamW in one
process."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.processes import RankPool
from tests.parity.megatron import models, prediction
from tests.parity.megatron.compare import assert_same_training
from tests.parity.megatron.ranks import Run
from tests.parity.strategies.reference import Trace

Pools = Callable[[int], RankPool]
TP2: dict[str, Any] = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
EP2: dict[str, Any] = {"expert_model_parallel_size": 2}
CP2: dict[str, Any] = {"context_parallel_size": 2}
SHARED: dict[str, Any] = {"use_distributed_optimizer": True}
BUCKETS: dict[str, Any] = {"overlap_grad_reduce": True, "bucket_size": 1000}
OVERLAP: dict[str, Any] = BUCKETS | {"overlap_param_gather": True}
RECOMPUTE: dict[str, Any] = {"recompute_granularity": "full"}
LAYERS: dict[str, Any] = {"moe_layer_recompute": True}
YARN = {"rope_parameters": models.YARN_ROPE | {"mscale": 0.7, "mscale_all_dim": 1.0}}

CASES: dict[str, tuple[int, str, str, dict[str, Any], dict[str, Any]]] = {
    "joint": (1, "deepseek_v3", "joint", {}, {}),
    "standalone-packed": (1, "deepseek_v3", "standalone", {}, {"packs": True, "split": (3, 1)}),
    "dp2": (2, "glm4_moe", "joint", {}, {"split": (3, 1)}),
    "dp2-shared-standalone": (2, "deepseek_v3", "standalone", SHARED | BUCKETS, {}),
    "tp2": (2, "deepseek_v3", "joint", TP2, {"split": (3, 1)}),
    "tp2-standalone-shared": (2, "glm4_moe", "standalone", TP2 | SHARED, {"packs": True}),
    "ep2": (2, "glm4_moe", "joint", EP2 | SHARED, {"split": (3, 1)}),
    "cp2": (2, "deepseek_v3", "joint", CP2, {"split": (3, 1)}),
    "cp2-standalone-packed": (2, "glm4_moe", "standalone", CP2, {"packs": True}),
    "tp2-ep2-recompute": (4, "deepseek_v3", "joint", TP2 | EP2 | RECOMPUTE, {"packs": True}),
    "ep2-overlap-recompute": (2, "deepseek_v3", "standalone", EP2 | SHARED | OVERLAP | LAYERS, {}),
}


@pytest.fixture(scope="module")
def with_head(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def made(family: str) -> Path:
        changes: dict[str, Any] = YARN if family == "deepseek_v3" else {}
        return prediction.make(tmp_path_factory.mktemp(family), family, **changes)

    return made


@pytest.fixture(scope="module")
def references(with_head: Callable[[str], Path]) -> Callable[[str, str], tuple[Trace, list[float]]]:
    @cache
    def made(family: str, mode: str) -> tuple[Trace, list[float]]:
        return prediction.train_reference(with_head(family), mode, max_norm=0.5, weight_decay=0.1)

    return made


@pytest.mark.proof
@pytest.mark.parametrize("name", list(CASES))
def test_the_head_and_the_policy_train_as_in_one_process(
    name: str,
    rank_pool: Pools,
    with_head: Callable[[str], Path],
    references: Callable[[str, str], tuple[Trace, list[float]]],
) -> None:
    world_size, family, mode, settings, options = CASES[name]
    run = Run(
        with_head(family), settings, max_norm=0.5, weight_decay=0.1, vocab_size=models.VOCAB_SIZE, head=mode, **options
    )
    got, losses = rank_pool(world_size).run(prediction.train, run)[0]
    want, wanted = references(family, mode)
    assert_same_training(got, want)
    assert losses == pytest.approx(wanted, rel=1e-5)
