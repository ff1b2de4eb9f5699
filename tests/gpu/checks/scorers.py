"""Models that only score, on their devices: log-probs of Hugging Face, before and after a trip to host memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.gpu.check import Figures, largest
from tests.gpu.checks.trainers import held_bytes
from tests.gpu.place import Place


def scores(place: Place, strategy: str, settings: dict[str, Any]) -> Figures:
    with place.ranks(len(place.devices)) as pool:
        found = pool.run(_scores, place.tiny_model(), strategy, settings)
    return {name: largest(rank[name] for rank in found) for name in found[0]}


def _scores(model_dir: Path, strategy_name: str, settings: dict[str, Any]) -> dict[str, float]:
    """One rank."""
    import torch
    from transformers import AutoModelForCausalLM

    from roll.configs.sections.cluster import WorkerConfig
    from roll.configs.strategies.table import load_spec
    from roll.distributed.strategy.base import ALL_STATES
    from roll.utils.imports import resolve
    from tests.parity.strategies.reference import TEMPERATURE, join, naive_log_probs, rows
    from tests.parity.strategies.runs import context

    role = WorkerConfig.model_validate(
        {
            "strategy_args": {"strategy_name": strategy_name, "strategy_config": settings},
            "model_args": {"model_name_or_path": str(model_dir), "dtype": "fp32"},
        }
    )
    where = context("reference")
    strategy: Any = resolve(load_spec(strategy_name).classes["score"])
    scorer = strategy(role, where)
    scorer.setup()

    def log_probs() -> torch.Tensor:
        found = scorer.log_probs([join(rows())], TEMPERATURE)[0].log_probs
        assert found is not None
        return found

    before = log_probs()
    held = held_bytes(where.device)
    scorer.offload_states(ALL_STATES)
    away = held_bytes(where.device)
    scorer.load_states(ALL_STATES)
    after = log_probs()
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    gaps: list[float] = []
    for number, row in enumerate(rows()):
        with torch.no_grad():
            want = naive_log_probs(model, row, TEMPERATURE)[0][0]
        gaps.append(float((before[number, : len(want)] - want).abs().max()))
    scorer.shutdown()
    return {
        "log_prob_gap_max": largest(gaps),
        "trip_difference": float((after - before).abs().max()),
        "left_on_device_fraction": away / max(held, 1),
    }
