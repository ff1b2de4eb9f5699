"""verl's corrections between engine and trainer: weights, and answers that are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from roll.importers.rows import ChangesRun, CombinedKeys, SourceLookup
from roll.importers.verl.common import ACTOR
from roll.utils.text import show

_AT, _WEIGHT = "algorithm.rollout_correction", "train_infer_correction.is_weight"
_AGREEMENTS: Mapping[str, str] = {
    "token_k1": "token",
    "seq_sum_k1": "sequence",
    "seq_mean_k1": "geometric",
    "token": "token",
    "sequence": "sequence",
    "geometric": "geometric",
}
"""Units over which a ratio is held between bounds; the later names are those of older versions."""


def _weights(source: SourceLookup) -> CombinedKeys:
    """Truncated importance sampling between engine and trainer, under the three names that it has had."""
    cap = source.amount(f"{ACTOR}.tis_imp_ratio_cap", 0)
    newest = f"{_AT}.rollout_is"
    if level := source(newest):
        bound = source.amount(f"{newest}_threshold", 2)
    elif cap > 0 or source("algorithm.rollout_is"):
        level = source("algorithm.rollout_is_level") or "token"
        bound = cap if cap > 0 else source.amount("algorithm.rollout_is_threshold", 2)
    else:
        return CombinedKeys({}, "off; here it is on where rollouts run ahead")
    return CombinedKeys(
        {f"{_WEIGHT}.enabled": True, f"{_WEIGHT}.weight_type": level, f"{_WEIGHT}.upper_bound": bound},
        f"{_WEIGHT}: weights per {level}, at most {bound:g}.",
    )


def unweighted(source: SourceLookup) -> Mapping[str, Any]:
    """Weights between engine and trainer where rollouts run ahead: off there unless a key asks for them."""
    return {} if _weights(source).settings else {f"{_WEIGHT}.enabled": False}


def _rejection(source: SourceLookup) -> CombinedKeys:
    """Ratios of trainer to engine that are out of their bounds leave their tokens, or their answers, out."""
    kinds = str(source(f"{_AT}.rollout_rs") or "")
    if not kinds:
        return CombinedKeys({}, "off")
    names = [name.strip() for name in kinds.split(",")]
    if unknown := [name for name in names if name not in _AGREEMENTS]:
        raise ChangesRun(
            f"there is no {show(unknown[0])} here; filters hold ratios within bounds: {', '.join(_AGREEMENTS)}"
        )
    bounds = str(source(f"{_AT}.rollout_rs_threshold") or "").split(",")
    if len(bounds) not in (1, len(names)) or not all(bounds):
        raise ChangesRun(f"{_AT}.rollout_rs_threshold must have a bound for each of {kinds}")
    filters = []
    for name, bound in zip(names, bounds * (len(names) // len(bounds)), strict=True):
        low, high = _bounds(source, bound)
        filters.append({"enabled": True, "agg_type": _AGREEMENTS[name], "ratio_low": low, "ratio_high": high})
    shown = ", ".join(
        f"{each['agg_type']} ratios from {each['ratio_low']:g} to {each['ratio_high']:g}" for each in filters
    )
    return CombinedKeys({"train_infer_correction.filters": filters}, f"train_infer_correction.filters keep {shown}.")


def _bounds(source: SourceLookup, text: str) -> tuple[float, float]:
    """Example: "0.99_1.01" is both; "2" is the upper one, whose inverse is the lower one unless it has a key."""
    try:
        low, _, high = text.strip().rpartition("_")
        return (float(low) if low else _lower(source, float(high))), float(high)
    except (ValueError, ZeroDivisionError):
        raise ChangesRun(f"{_AT}.rollout_rs_threshold: {show(text)} is no bound") from None


def _lower(source: SourceLookup, upper: float) -> float:
    lower = source(f"{_AT}.rollout_rs_threshold_lower")
    return 1 / upper if lower is None else float(lower)


CORRECTION_COMBINED_KEYS: Mapping[str, Callable[[SourceLookup], CombinedKeys]] = {
    "correction": _weights,
    "rejection": _rejection,
}
