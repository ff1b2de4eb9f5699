"""Leaving the device and coming back, on a CPU: the same calls as on a GPU, whose device is here the host again."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import ALL_STATES
from roll.distributed.strategy.deepspeed.rank import full_shape
from roll.distributed.strategy.deepspeed.train import DeepSpeedTrainStrategy
from tests.helpers.processes import RankPool
from tests.parity.strategies.reference import TEMPERATURE, join, rows
from tests.parity.strategies.runs import Run, context, exported, one_update
from tests.parity.strategies.runs import trainer as any_trainer

Pools = Callable[[int], RankPool]
FROZEN = "model.embed_tokens"


@contextmanager
def trainer(run: Run) -> Iterator[DeepSpeedTrainStrategy]:
    with any_trainer(run) as strategy:
        assert isinstance(strategy, DeepSpeedTrainStrategy)
        yield strategy


def trip(strategy: DeepSpeedTrainStrategy) -> None:
    """To host memory and back."""
    own_memory(untrained_or_whole(strategy))
    strategy._offload.to_host(ALL_STATES)
    strategy._offload.to_device(ALL_STATES)


def untrained_or_whole(strategy: DeepSpeedTrainStrategy) -> list[torch.Tensor]:
    from roll.distributed.strategy.deepspeed.rank import untrained

    whole = strategy.rank.config.stage == 0
    return list(strategy.model.module.parameters() if whole else untrained(strategy.engine, strategy.rank.config))


def own_memory(tensors: Iterable[torch.Tensor]) -> None:
    """As on a GPU: not of a file that is mapped, and in no numpy array."""
    for tensor in tensors:
        tensor.data = tensor.data.clone()


def trained_after_a_trip(run: Run) -> tuple[bool, list[str]]:
    """Whether the weights came back as they were, and which of them an update then moved."""
    with trainer(run) as strategy:
        before = exported(strategy)
        trip(strategy)
        back = exported(strategy)
        one_update(strategy, run)
        after = exported(strategy)
        same = all(np.array_equal(before[name], back[name]) for name in before)
        return same, [name for name in before if not np.array_equal(before[name], after[name])]


def two_updates(run: Run, takes_trip: bool) -> dict[str, np.ndarray]:
    """The weights after them; between them a trip to host memory and back."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        if takes_trip:
            trip(strategy)
        one_update(strategy, run)
        return exported(strategy)


def moved_by_deepspeed(run: Run) -> set[str]:
    """Kinds of buffers that are away while the trainer is."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        strategy._offload.to_host(ALL_STATES)
        away: Any = strategy.engine.optimizer.offloaded_states  # type: ignore[union-attr]
        kinds = {kind.value for kind in away}
        strategy._offload.to_device(ALL_STATES)
        return kinds


def frozen_elements(run: Run) -> int:
    """Elements of weights that go beside DeepSpeed's own buffers."""
    from roll.distributed.strategy.deepspeed.rank import untrained

    with trainer(run) as strategy:
        return sum(tensor.numel() for tensor in untrained(strategy.engine, strategy.rank.config))


def scored_after_a_trip(model_dir: Path, zero: dict[str, Any]) -> tuple[bool, int, int]:
    """Whether log-probs are equal before and after; elements that travelled, and those of the model."""
    from roll.distributed.strategy.deepspeed.rank import ScorerOffload, untrained
    from roll.distributed.strategy.deepspeed.score import DeepSpeedScoreStrategy

    config = WorkerConfig.model_validate(
        {
            "strategy_args": {"strategy_name": "deepspeed_infer", "strategy_config": {"zero_optimization": zero}},
            "model_args": {"model_name_or_path": str(model_dir), "dtype": "fp32"},
        }
    )
    strategy = DeepSpeedScoreStrategy(config, context("reference"))
    strategy.setup()
    engine = strategy.rank.engine
    assert engine is not None

    def log_probs() -> torch.Tensor:
        found = strategy.log_probs([join(rows())], TEMPERATURE)[0].log_probs
        assert found is not None
        return found

    own_memory(untrained(engine, strategy.rank.config))
    before = log_probs()
    offload = ScorerOffload(engine, strategy.rank.config)
    offload.to_host()
    offload.to_device()
    same = torch.equal(before, log_probs())
    travelled = sum(tensor.numel() for tensor in untrained(engine, strategy.rank.config))
    whole = sum(full_shape(p).numel() for p in strategy.model.module.parameters())
    strategy.shutdown()
    return same, travelled, whole


@pytest.mark.gate("2")
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_trainer_with_frozen_weights_comes_back_as_it_was(stage: int, rank_pool: Pools, tiny_model_dir: Path) -> None:
    run = Run(tiny_model_dir, stage, model={"freeze_module_prefix": FROZEN})
    same, moved = rank_pool(1).run(trained_after_a_trip, run)[0]
    assert same
    assert moved and not [name for name in moved if name.startswith(FROZEN)]


@pytest.mark.gate("2-bf16")
@pytest.mark.parametrize(
    ("stage", "dtype"), [(0, "fp32"), (0, "bf16"), (2, "bf16"), (3, "fp32")], ids=["0", "0-bf16", "2-bf16", "3"]
)
def test_a_trip_to_host_memory_changes_no_update(
    stage: int, dtype: str, rank_pool: Pools, tiny_model_dir: Path
) -> None:
    """Weights, moments and the hooks that collect gradients are as they were: the second update is the same."""
    run = Run(tiny_model_dir, stage, model={"dtype": dtype})
    stayed, travelled = (rank_pool(1).run(two_updates, run, takes_trip)[0] for takes_trip in (False, True))
    assert stayed
    for name, weights in stayed.items():
        np.testing.assert_array_equal(travelled[name], weights, err_msg=name)


@pytest.mark.gate("3")
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_trip_changes_no_update_of_adapters(stage: int, rank_pool: Pools, tiny_model_dir: Path) -> None:
    """Frozen weights and adapters leave together and come back as they were."""
    run = Run(tiny_model_dir, stage, model={"dtype": "bf16", "lora_target": "all-linear"})
    stayed, travelled = (rank_pool(1).run(two_updates, run, takes_trip)[0] for takes_trip in (False, True))
    assert max(float(np.abs(travelled[name] - stayed[name]).max()) for name in stayed) == 0


def test_gradients_that_lie_in_host_memory_are_left_there(rank_pool: Pools, tiny_model_dir: Path) -> None:
    """With the optimizer in host memory ZeRO-3 keeps the gradients there; reloaded they would come to the GPU."""
    on_device = rank_pool(1).run(moved_by_deepspeed, Run(tiny_model_dir, 3))[0]
    assert on_device == {"lp_params", "lp_grads", "contiguous_grad_buffer"}
    zero = {"offload_optimizer": {"device": "cpu"}}
    on_host = rank_pool(1).run(moved_by_deepspeed, Run(tiny_model_dir, 3, zero=zero))[0]
    assert on_host == {"lp_params", "contiguous_grad_buffer"}


@pytest.mark.gate("3")
@pytest.mark.parametrize("stage", [2, 3])
def test_frozen_weights_go_with_the_trained_ones(stage: int, rank_pool: Pools, tiny_model_dir: Path) -> None:
    run = Run(tiny_model_dir, stage, model={"freeze_module_prefix": FROZEN})
    assert rank_pool(1).run(frozen_elements, run) == [296 * 128]  # the embedding


@pytest.mark.gate("whole", "zero3")
@pytest.mark.parametrize(
    ("zero", "world_size", "share"),
    [
        ({"stage": 0}, 1, 1),
        ({"stage": 2}, 2, 1),
        ({"stage": 3}, 2, 0.5),
        ({"stage": 3, "stage3_param_persistence_threshold": 0}, 2, 0.5),
        ({"stage": 3, "offload_param": {"device": "cpu"}}, 2, 0),
    ],
    ids=["whole", "zero2", "zero3-gathered", "zero3", "zero3-on-host"],
)
def test_a_scorer_leaves_its_device_and_scores_the_same_when_it_is_back(
    zero: dict[str, Any], world_size: int, share: float, rank_pool: Pools, tiny_model_dir: Path
) -> None:
    """Each rank moves its share of the weights; what offload_param keeps in host memory stays there."""
    for same, travelled, whole in rank_pool(world_size).run(scored_after_a_trip, tiny_model_dir, zero):
        assert same
        assert travelled == share * whole
