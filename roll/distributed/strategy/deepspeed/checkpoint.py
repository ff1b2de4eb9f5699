"""Saving and loading the state of a DeepSpeed engine, without ever unpickling arbitrary objects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from roll.distributed.strategy.optimizer import go_on_after
from roll.distributed.strategy.random_state import random_state, random_state_file, set_random_state
from roll.distributed.strategy.saved_facts import SavedFacts
from roll.errors import StrategyError

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

_TAG = "engine"
_GROUP_SETTINGS = ("initial_lr", "weight_decay", "betas", "eps")
_SAFE_CLASSES = [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]


class SafeCheckpointEngine(TorchCheckpointEngine):
    """DeepSpeed's own reader unpickles whatever a file holds; this one takes tensors, plain values and four named
    classes."""

    def load(self, path: str, map_location: Any = None) -> Any:
        with torch.serialization.safe_globals(_SAFE_CLASSES):
            return torch.load(path, map_location=map_location, weights_only=True)


def save(engine: DeepSpeedEngine, directory: Path, rank: int, facts: SavedFacts, trained_only: bool = False) -> None:
    """Weights (or those that are trained), optimizer, schedule and random state. `facts` are what a loader must agree
    with. Collective."""
    engine.save_checkpoint(str(directory), tag=_TAG, save_latest=False, exclude_frozen_parameters=trained_only)
    torch.save(random_state(), random_state_file(directory, rank))
    if rank == 0:
        facts.write(directory)
    torch.distributed.barrier()


def load(engine: DeepSpeedEngine, directory: Path, rank: int, trained_only: bool = False) -> None:
    """Restores what `save` wrote, under the learning rate, decay, betas, epsilon and clip that the engine was built
    with. Collective."""
    engine.checkpoint_engine = SafeCheckpointEngine()
    with _own_settings(engine):
        path, _ = engine.load_checkpoint(str(directory), tag=_TAG, load_module_strict=not trained_only)
    if path is None:
        raise StrategyError(f"{directory / _TAG} holds no complete checkpoint of deepspeed_train")
    set_random_state(torch.load(random_state_file(directory, rank), weights_only=True))


@contextmanager
def _own_settings(engine: DeepSpeedEngine) -> Iterator[None]:
    """What is loaded inside brings its optimizer's settings along; afterwards those of the engine hold again, the
    schedule at the place that was loaded."""
    optimizer: Any = engine.basic_optimizer
    schedule: Any = engine.lr_scheduler
    groups = [{key: group[key] for key in _GROUP_SETTINGS} for group in optimizer.param_groups]
    yield
    for group, own in zip(optimizer.param_groups, groups, strict=True):
        group.update(own)
    schedule.base_lrs = [own["initial_lr"] for own in groups]
    go_on_after(schedule, schedule.last_epoch)
    wrapper: Any = engine.optimizer
    if wrapper is not optimizer:
        wrapper.clip_grad = engine.gradient_clipping()
