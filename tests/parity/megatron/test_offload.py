"""A trainer that shares its device leaves it after every update. Compared with one that stays, on the same rows: the
second update must be the same, so weights, moments and the hooks that collect gradients all came back."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.processes import RankPool
from tests.parity.megatron import ranks
from tests.parity.megatron.layouts import BF16, SHARED, TP2
from tests.parity.megatron.ranks import Run

Pools = Callable[[int], RankPool]
FROZEN = {"freeze_module_prefix": "model.embed_tokens"}


@pytest.mark.gate("distributed-frozen")
@pytest.mark.parametrize(
    ("megatron", "model", "world_size"),
    [({}, {}, 1), (TP2, BF16, 2), (SHARED, BF16, 2), (SHARED, FROZEN, 1)],
    ids=["plain", "tensor-bf16", "distributed-bf16", "distributed-frozen"],
)
def test_a_trip_to_host_memory_takes_everything_along_and_changes_no_update(
    megatron: dict[str, Any], model: dict[str, Any], world_size: int, rank_pool: Pools, tiny_model_dir: Path
) -> None:
    pool, run = rank_pool(world_size), Run(tiny_model_dir, megatron, model=model)
    stayed = pool.run(ranks.update_after_a_trip, run, False)[0]
    travelled = pool.run(ranks.update_after_a_trip, run, True)
    assert [trip.held for trip in travelled] == [0] * world_size
    assert travelled[0].grad_norm == stayed.grad_norm > 0
    for name, weights in stayed.parameters.items():
        np.testing.assert_array_equal(travelled[0].parameters[name], weights, err_msg=name)


@pytest.mark.gate("distributed-bf16")
@pytest.mark.parametrize(("megatron", "model"), [({}, {}), (SHARED, BF16)], ids=["plain", "distributed-bf16"])
def test_an_optimizer_that_waits_in_host_memory_during_the_passes_changes_nothing(
    megatron: dict[str, Any], model: dict[str, Any], rank_pool: Pools, tiny_model_dir: Path
) -> None:
    """is_offload_optimizer_states_in_train_step. On a CPU the copies are made all the same."""
    pool, run = rank_pool(2), Run(tiny_model_dir, megatron, model=model)
    stayed, waited = (pool.run(ranks.train, replace(run, optimizer_waits=waits))[0] for waits in (False, True))
    for name, weights in stayed.parameters[-1].items():
        np.testing.assert_array_equal(waited.parameters[-1][name], weights, err_msg=name)
