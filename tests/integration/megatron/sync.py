"""Weights from ranks of megatron_train to an engine in the test's own process, by every route."""

from __future__ import annotations

from pathlib import Path

import torch

from roll.distributed.executor.weights.sender import EngineRoute, Route, SendPlan, WeightSender
from tests.helpers.engine_socket import CHECK, NoEngine, OneEngine
from tests.parity.megatron.ranks import Run, exported, one_update, trainer

ROUTES: tuple[Route, ...] = ("memory", "broadcast", "file")
BUCKET_BYTES = 50_000  # several buckets, and layers lie across their borders


def publish(address: str, run: Run, directory: Path, version: int) -> list[int]:
    """On every rank: for each route one update and its weights to the engine, which must then have them. `version` is
    what the engine has."""
    versions: list[int] = []
    with trainer(run) as strategy:
        sender = WeightSender(strategy.context.rank, torch.device("cpu"))
        engine = OneEngine(address) if strategy.exports_weights else NoEngine()
        for new_version, route in enumerate(ROUTES, version + 1):
            one_update(strategy, run)
            plan = SendPlan((EngineRoute(route, (0,)),), directory=directory)
            versions += sender.send(strategy.export_weights(BUCKET_BYTES), engine, plan, new_version) or []
            weights = exported(strategy)
            engine.start(CHECK, {0: (weights,)}).result()
        sender.close()
    return versions
