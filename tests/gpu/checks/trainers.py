"""Trainers on their devices: the same updates as Hugging Face + torch on a CPU, also after a trip to host memory and
after a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from tests.gpu.check import Figures, largest
from tests.gpu.place import Place
from tests.helpers import processes

if TYPE_CHECKING:
    from tests.parity.strategies.reference import Trace

Kind = Literal["deepspeed", "megatron", "fsdp2"]


def trains(
    place: Place,
    kind: Kind,
    settings: dict[str, Any],
    num_ranks: int | None = None,
    adapts: bool = False,
    mixture: bool = False,
) -> Figures:
    """Two updates with a trip to host memory between them, against two without; three against the reference; one after
    a checkpoint, against one without. `adapts`: of adapters instead of the weights. `mixture`: of a model with
    experts."""
    from tests.parity.strategies.forks import forks
    from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, rows, train_reference

    given = forks() if "shares" in settings else rows()
    model_dir = place.mixture() if mixture else place.tiny_model()
    adapter = adapter_of(model_dir, place.directory) if adapts else None
    num_ranks = num_ranks or len(place.devices)
    want = train_reference(model_dir, given, BentLoss(), [LEARNING_RATE] * 3, adapter=adapter)
    run = run_of(kind, model_dir, settings, lora_settings(adapter) if adapter else None)
    with ranks_of(place, kind, num_ranks) as pool:
        # First, in fresh processes: nothing else is on their devices.
        travelled, stayed = (pool.run(update_after_a_trip, kind, run, trip)[0] for trip in (True, False))
        trace = pool.run(helpers_of(kind).train, run)[0]
        saved = pool.run(update_after_a_checkpoint, kind, run, place.directory)[0]
    if mixture:
        want, trace = _one_by_one(want), _one_by_one(trace)
    gradients = {"gradient_difference": difference(trace.gradients, want.gradients)} if trace.gradients else {}
    norms = [(got["grad_norm"], wanted["grad_norm"]) for got, wanted in zip(trace.metrics, want.metrics, strict=True)]
    return gradients | {
        "weight_difference": largest(difference(*pair) for pair in zip(trace.parameters, want.parameters, strict=True)),
        "grad_norm_difference": largest(abs(got / wanted - 1) for got, wanted in norms),
        "grad_norm_after_trip": travelled["grad_norm"],
        "moved_after_trip": difference(travelled["before"], travelled["after"]),
        "trip_difference": difference(travelled["after"], stayed["after"]),
        "trip_grad_norm_difference": abs(travelled["grad_norm"] / stayed["grad_norm"] - 1),
        "left_on_device_fraction": travelled["away_bytes"] / state_bytes(travelled["before"], num_ranks, adapts),
        "resume_difference": difference(saved["resumed"], saved["unbroken"]),
        "export_gb": travelled["export_bytes"] / 1e9,
    }


def state_bytes(weights: dict[str, np.ndarray], num_ranks: int, adapts: bool) -> float:
    """A rank's part of a model's weights and moments in fp32, wherever they lie; of adapters' moments nothing is
    counted. What is left on a device is held against this: of a trainer whose states wait in host memory between two
    updates, next to nothing is on the device at any time."""
    copies = 1 if adapts else 3
    return 4 * copies * sum(weight.size for weight in weights.values()) / num_ranks


def _one_by_one(trace: Trace) -> Trace:
    """The experts' matrices as files hold them."""
    from tests.parity.megatron.models import as_stored

    parameters = [as_stored(weights, "qwen3_moe") for weights in trace.parameters]
    return replace(trace, gradients=as_stored(trace.gradients, "qwen3_moe"), parameters=parameters)


def adapter_of(model_dir: Path, directory: Path) -> Path:
    from transformers import AutoModelForCausalLM

    from tests.parity.strategies.adapters import an_adapter

    return an_adapter(AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32), directory / "adapter")


def lora_settings(adapter: Path) -> dict[str, Any]:
    from tests.parity.strategies.adapters import LORA

    return LORA | {"adapter_name_or_path": str(adapter)}


def update_after_a_trip(kind: Kind, run: Any, trip: bool) -> dict[str, Any]:
    """One rank: weights around the second of two updates, its gradient norm, and what lay on the device during the
    trip."""
    module = helpers_of(kind)
    with module.trainer(run) as strategy:
        module.one_update(strategy, run)
        away = go_and_come_back(kind, strategy) if trip else 0
        free = free_bytes(strategy.context.device)
        before = module.exported(strategy)
        export = free - free_bytes(strategy.context.device)
        norm = module.one_update(strategy, run)["grad_norm"]
        return {
            "before": before,
            "after": module.exported(strategy),
            "grad_norm": norm,
            "away_bytes": away,
            "export_bytes": export,
        }


def go_and_come_back(kind: Kind, strategy: Any) -> int:
    """Bytes on the device meanwhile. On a CPU the strategies have nowhere to go: their movers are called as on a GPU,
    whose device is the host again."""
    from roll.distributed.strategy.base import ALL_STATES

    if strategy.context.device.type == "cuda":
        strategy.offload_states(ALL_STATES)
        away = held_bytes(strategy.context.device)
        strategy.load_states(ALL_STATES)
        return away
    if kind == "fsdp2":
        strategy.rank.offload_weights()
        strategy.updater.offload()
        strategy.rank.load_weights()
        strategy.updater.load()
        return 0
    if kind == "deepspeed":
        for tensor in strategy.model.module.parameters():
            tensor.data = tensor.data.clone()  # as on a GPU: not of a file that is mapped, and in no numpy array
    strategy._offload.to_host(ALL_STATES)
    strategy._offload.to_device(ALL_STATES)
    return 0


def held_bytes(device: torch.device) -> int:
    """Of tensors on the device, 0 without one. Without the workspace of cuBLAS, which lies in torch's memory from the
    first product on: 32 MiB, many times the tiny model."""
    if device.type == "cpu":
        return 0
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def free_bytes(device: torch.device) -> int:
    """By the driver, torch's cache given back first; 0 without a device. Communicators are seen here only."""
    if device.type == "cpu":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def update_after_a_checkpoint(kind: Kind, run: Any, directory: Path) -> dict[str, Any]:
    """One rank: the weights after a third update, of an unbroken run and of one that was saved after two and loaded by
    a new strategy."""
    module = helpers_of(kind)
    checkpoint = directory / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    with module.trainer(run) as strategy:
        for _ in range(2):
            module.one_update(strategy, run)
        strategy.save_checkpoint(checkpoint)
        module.one_update(strategy, run)
        unbroken = module.exported(strategy)
    with module.trainer(run) as strategy:
        strategy.load_checkpoint(checkpoint)
        module.one_update(strategy, run)
        return {"unbroken": unbroken, "resumed": module.exported(strategy)}


def difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """The largest one of any element; nan where an element is."""
    if a.keys() != b.keys():
        raise AssertionError(f"other weights: {sorted(a.keys() ^ b.keys())[:5]}")
    return float(np.max([np.abs(a[name] - b[name]).max() for name in a]))


def run_of(kind: Kind, model_dir: Path, settings: dict[str, Any], model: dict[str, Any] | None = None) -> Any:
    of_model = {name: value for name, value in settings.items() if name == "enable_activation_offload"}
    layout = {name: value for name, value in settings.items() if name in ("packs", "shares")}
    run = helpers_of(kind).Run(model_dir, model=(model or {}) | of_model, **layout)
    own = {name: value for name, value in settings.items() if name not in layout and name not in of_model}
    if kind == "megatron":
        return replace(run, megatron=own)
    if kind == "fsdp2":
        return replace(run, fsdp2=own)
    return replace(run, stage=own.pop("stage"), zero=own)


def helpers_of(kind: Kind) -> Any:
    """The helpers of the parity tests of this kind: Run, trainer, one_update, exported, train."""
    if kind == "megatron":
        from tests.parity.megatron import ranks

        return ranks
    from tests.parity.strategies import runs

    return runs


def ranks_of(place: Place, kind: Kind, count: int) -> processes.RankPool:
    if kind == "megatron":
        preloaded = "tests.parity.megatron.preloaded"
        processes.PRELOADED = (*processes.PRELOADED, preloaded)
    return place.ranks(count)
