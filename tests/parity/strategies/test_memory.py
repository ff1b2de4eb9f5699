"""What the plan says of a rank's memory against what ranks of DeepSpeed and FSDP2 hold. The device does not matter for
that. Not covered: gradients of stages 0 to 2, which live within an update, and what passes need beside the states."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.configs.memory import fsdp2
from roll.configs.memory.deepspeed import train_memory
from roll.configs.memory.model_shape import model_shape
from roll.configs.memory.parts import RoleFacts
from roll.distributed.strategy.deepspeed.train import DeepSpeedTrainStrategy
from roll.distributed.strategy.fsdp2.rank import local
from roll.distributed.strategy.fsdp2.train import Fsdp2TrainStrategy
from tests.helpers.processes import RankPool
from tests.parity.megatron import models
from tests.parity.strategies.runs import Run, one_update, trainer

Pools = Callable[[int], RankPool]


def held(run: Run) -> dict[str, int]:
    """Bytes of one rank after an update."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        assert isinstance(strategy, DeepSpeedTrainStrategy)
        optimizer: Any = strategy.engine.optimizer
        parameters: list[Any] = list(strategy.model.module.parameters())
        if run.stage == 3:
            parameters = [parameter.ds_tensor for parameter in parameters]
        found = {
            "weights": sum(tensor.nbytes for tensor in parameters),
            "optimizer": sum(tensor.nbytes for tensor in _optimizer(strategy.engine, run.stage)),
        }
        if run.stage == 3:
            found["gradients"] = optimizer.grad_partitions_flat_buffer.nbytes
        return found


def _optimizer(engine: Any, stage: int) -> Iterator[torch.Tensor]:
    """Master weights, where they are not the weights themselves, and moments."""
    outer, basic = engine.optimizer, engine.basic_optimizer
    if stage == 3:
        weights = {tensor.data_ptr() for tensor in outer.fp16_partitioned_groups_flat}
        yield from (tensor for tensor in outer.fp32_partitioned_groups_flat if tensor.data_ptr() not in weights)
    elif stage > 0:
        yield from outer.single_partition_of_fp32_groups
    elif outer is not basic:
        yield from (master for group in basic.param_groups for master in group["params"])
    for state in basic.state.values():
        yield from (value for value in state.values() if torch.is_tensor(value) and value.ndim)


@pytest.mark.gate("2-{'dtype': 'fp32'}", "3-{'dtype': 'bf16'}")
@pytest.mark.parametrize(
    ("stage", "model"),
    [
        (0, {"dtype": "bf16"}),
        (0, {"dtype": "fp32"}),
        (1, {"dtype": "bf16"}),
        (2, {"dtype": "fp32"}),
        (2, {"dtype": "bf16", "freeze_module_prefix": "model.embed_tokens"}),
        (2, {"dtype": "bf16", "lora_target": "all-linear", "lora_rank": 16, "additional_target": "lm_head"}),
        (3, {"dtype": "bf16"}),
        (3, {"dtype": "fp32"}),
        (3, {"dtype": "bf16", "lora_target": "all-linear", "lora_rank": 16}),
    ],
    ids=str,
)
def test_ranks_hold_what_the_plan_says(
    stage: int, model: dict[str, Any], rank_pool: Pools, tiny_model_dir: Path
) -> None:
    """Flat buffers are padded for their alignment: a rank holds what the plan says, and at most 1 % more."""
    run = Run(tiny_model_dir, stage, model=model)
    found = rank_pool(2).run(held, run)
    shape, _ = model_shape(json.loads((tiny_model_dir / "config.json").read_text()))
    assert shape is not None
    states = train_memory(RoleFacts(run.config(), shape, "train", 2, shares_devices=False)).states
    parts = {part.name: part.num_bytes for parts in states.values() for part in parts}
    for bytes_of in found:
        for name, held_bytes in bytes_of.items():
            assert parts[name] <= held_bytes <= 1.01 * parts[name], name


def held_in_shards(run: Run) -> dict[str, int]:
    """Bytes of one rank after an update."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        assert isinstance(strategy, Fsdp2TrainStrategy)
        states = strategy.updater.optimizer.state.values()
        moments = [local(value) for state in states for value in state.values() if value.ndim]
        return {
            "weights": sum(local(shard).untyped_storage().nbytes() for shard in strategy.rank.shards().values()),
            "optimizer": sum(moment.nbytes for moment in moments),
        }


@pytest.mark.gate("{'dtype': 'fp32'}")
@pytest.mark.parametrize(
    "model",
    [
        {"dtype": "fp32"},
        {"dtype": "bf16", "freeze_module_prefix": "model.embed_tokens"},
        {"dtype": "bf16", "lora_target": "all-linear", "lora_rank": 16, "additional_target": "lm_head"},
    ],
    ids=str,
)
def test_ranks_hold_the_shards_that_the_plan_says(
    model: dict[str, Any], rank_pool: Pools, tiny_model_dir: Path
) -> None:
    """Of two ranks, to the byte: here every first dimension is even."""
    run = Run(tiny_model_dir, fsdp2={}, model=model)
    shape, _ = model_shape(json.loads((tiny_model_dir / "config.json").read_text()))
    assert shape is not None
    states = fsdp2.train_memory(RoleFacts(run.config(), shape, "train", 2, shares_devices=False)).states
    planned = {part.name: part.num_bytes for parts in states.values() for part in parts}
    for found in rank_pool(2).run(held_in_shards, run):
        assert found == {name: planned[name] for name in found}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "world_size"), [("qwen3_moe", 2), ("qwen3_moe", 4), ("gpt_oss", 2)])
def test_ranks_that_divide_experts_hold_the_shards_that_the_plan_says(
    family: str, world_size: int, rank_pool: Pools, tmp_path: Path
) -> None:
    """To the byte: four experts, of which a rank has two, or on four ranks one of two."""
    models.make(tmp_path, family, vocab_size=296)
    run = Run(tmp_path, fsdp2={"ep_size": 2})
    shape, _ = model_shape(json.loads((tmp_path / "config.json").read_text()))
    assert shape is not None
    states = fsdp2.train_memory(RoleFacts(run.config(), shape, "train", world_size, shares_devices=False)).states
    planned = {part.name: part.num_bytes for parts in states.values() for part in parts}
    for found in rank_pool(world_size).run(held_in_shards, run):
        assert found == {name: planned[name] for name in found}
