"""Weights of any trainer from all its ranks that send. Module-level functions, because they travel to the ranks."""

from __future__ import annotations

import torch

from roll.distributed.executor.weights.sender import SendPlan, WeightSender
from tests.helpers.engine_socket import CHECK, NoEngine, OneEngine
from tests.parity.megatron import ranks as megatron
from tests.parity.strategies import runs as deepspeed

Run = deepspeed.Run | megatron.Run
BUCKET_BYTES = 50_000  # several buckets, and layers lie across their borders


def publish(address: str, run: Run, plans: dict[int, SendPlan]) -> list[str | list[int] | None]:
    """On every rank: for each version an update and, by its plan, its weights to the engine, which must then have them.
    Returns what each sending returned or raised."""
    backend = megatron if isinstance(run, megatron.Run) else deepspeed
    outcomes: list[str | list[int] | None] = []
    with backend.trainer(run) as strategy:  # type: ignore[arg-type]
        sender = WeightSender(strategy.context.rank, torch.device("cpu"))
        engine = OneEngine(address) if strategy.exports_weights else NoEngine()
        for version, plan in plans.items():
            backend.one_update(strategy, run)  # type: ignore[arg-type]
            buckets = strategy.export_weights(BUCKET_BYTES, plan.senders)
            try:
                outcomes.append(sender.send(buckets, engine, plan, version))
            except Exception as error:
                outcomes.append(f"{type(error).__name__}: {error}")
            weights = backend.exported(strategy)  # type: ignore[arg-type]
            engine.start(CHECK, {0: (weights,)}).result()
        sender.close()
    return outcomes
