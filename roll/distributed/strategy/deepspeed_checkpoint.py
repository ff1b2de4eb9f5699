"""Saving and loading the state of a DeepSpeed engine, without ever unpickling arbitrary objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from roll.errors import StrategyError

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

_TAG = "engine"
_FACTS = "facts.json"
_SAFE_CLASSES = [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]


class SafeCheckpointEngine(TorchCheckpointEngine):
    """DeepSpeed's own reader unpickles whatever a file holds; this one takes tensors, plain values and four named
    classes."""

    def load(self, path: str, map_location: Any = None) -> Any:
        with torch.serialization.safe_globals(_SAFE_CLASSES):
            return torch.load(path, map_location=map_location, weights_only=True)


def save(engine: DeepSpeedEngine, directory: Path, rank: int, facts: Mapping[str, object]) -> None:
    """Weights, optimizer, schedule and random state. `facts` are what a loader must agree with. Collective."""
    engine.save_checkpoint(str(directory), tag=_TAG, save_latest=False)
    torch.save(_random_state(), directory / f"random_state_{rank}.pt")
    if rank == 0:
        (directory / _FACTS).write_text(json.dumps(facts, indent=2))
    torch.distributed.barrier()


def load(engine: DeepSpeedEngine, directory: Path, rank: int, facts: Mapping[str, object]) -> None:
    """Restores what `save` wrote. Collective. StrategyError if it was written under other facts."""
    try:
        saved = json.loads((directory / _FACTS).read_text())
    except FileNotFoundError as error:
        raise StrategyError(f"{directory} holds no checkpoint of deepspeed_train: {_FACTS} is missing") from error
    wrong = [f"{key} {saved.get(key)!r} (now {value!r})" for key, value in facts.items() if saved.get(key) != value]
    if wrong:
        raise StrategyError(f"{directory} was saved with another layout: {', '.join(wrong)}. Resume with the same one.")
    engine.checkpoint_engine = SafeCheckpointEngine()
    path, _ = engine.load_checkpoint(str(directory), tag=_TAG)
    if path is None:
        raise StrategyError(f"{directory / _TAG} holds no complete checkpoint of deepspeed_train")
    _set_random_state(torch.load(directory / f"random_state_{rank}.pt", weights_only=True))


def _random_state() -> dict[str, Any]:
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available() and state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
