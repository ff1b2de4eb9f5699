"""Mixtures of experts whose adapters are trained, or whose routers are given: against one process on a CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.gpu.check import Figures, largest
from tests.gpu.checks.trainers import difference
from tests.gpu.place import Place

_VOCAB_SIZE = 296  # of the rows


def adapts_experts(place: Place, family: str, settings: dict[str, Any]) -> Figures:
    """Three updates by fsdp2_train of adapters of rank 3 on every matrix of the experts, in fp32, and their gradients
    in bf16, against W + s B A written out."""
    from tests.parity.megatron import adapted, models
    from tests.parity.strategies import runs
    from tests.parity.strategies.reference import LEARNING_RATE
    from tests.parity.strategies.test_lora_experts import by_layer

    model_dir = models.make(place.directory / "model", family, vocab_size=_VOCAB_SIZE)
    factors = adapted.some_factors(model_dir, family)
    want = adapted.train(model_dir, family, factors, [LEARNING_RATE] * 3, vocab_size=_VOCAB_SIZE)
    folder = place.directory / "adapter"
    folder.mkdir()
    model = adapted.SETTINGS | {
        "lora_target": "all-linear, gate_proj, up_proj, down_proj",
        "adapter_name_or_path": str(adapted.write(factors, model_dir, folder)),
        "disable_gradient_checkpointing": False,
    }
    run = runs.Run(model_dir, fsdp2={}, model=model, **settings)
    with place.ranks(1) as pool:
        got = pool.run(runs.train, run)[0]
        half = pool.run(runs.train, replace(run, updates=1, model=model | {"dtype": "bf16"}))[0]
    gradients, in_half = by_layer(got.gradients, family), by_layer(half.gradients, family)
    norms = [(ours["grad_norm"], wanted["grad_norm"]) for ours, wanted in zip(got.metrics, want.metrics, strict=True)]
    return {
        "gradient_difference": difference(gradients, want.gradients),
        "weight_difference": largest(difference(*pair) for pair in zip(got.parameters, want.parameters, strict=True)),
        "grad_norm_difference": largest(abs(ours / wanted - 1) for ours, wanted in norms),
        "bf16_gradient_gap": _of_norm(in_half, want.gradients),
        "bf16_log_prob_gap_max": largest(np.abs(half.scores[row] - want.scores[row]).max() for row in want.scores),
    }


def _of_norm(found: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> float:
    """The norm of the difference by the norm, of all together."""
    off = [float(np.linalg.norm(found[name] - gradient)) for name, gradient in want.items()]
    return float(np.linalg.norm(off) / np.linalg.norm([float(np.linalg.norm(each)) for each in want.values()]))


def replays(place: Place, family: str, settings: dict[str, Any]) -> Figures:
    """What fsdp2_train says of the experts that its tokens chose, and what it makes of given ones: log-probs, and the
    gradients of an update."""
    from tests.parity.megatron import models
    from tests.parity.strategies import routes, runs
    from tests.parity.strategies.reference import rows

    model_dir = models.make(place.directory / "model", family, vocab_size=_VOCAB_SIZE)
    want = routes.reference(model_dir, rows())
    with place.ranks(1) as pool:
        got = pool.run(runs.replayed, runs.Run(model_dir, split=(3, 1), replay="R2", fsdp2={}, **settings))[0]
    wrong = [
        not np.array_equal(np.sort(experts[:-1], -1), np.sort(getattr(want, kind)[row][:-1], -1))
        for kind in ("told", "obeyed")
        for row, experts in getattr(got, kind).items()
    ]
    gradients = (models.as_stored(each.gradients, "") for each in (got, want))
    return {
        "wrong_rows": sum(wrong),
        "num_rows": len(wrong),
        "log_prob_gap_max": largest(np.abs(got.log_probs[row] - want.log_probs[row]).max() for row in got.log_probs),
        "gradient_difference": difference(*gradients),
        "given_others": sum((want.told[row] != want.obeyed[row]).any() for row in want.told),
    }
