"""The group-relative REINFORCE of Trinity-RFT (`policy_loss_fn: rec`): its clip, weight and regulariser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from roll.configs.tables.policy_losses import RECClip, RECRegularizer, RECWeight
from roll.importers import words
from roll.importers.rows import Condition, Look, Row, summed, to
from roll.importers.verl.verl_conditions import CONDITIONS

_ARGS = "algorithm.policy_loss_fn_args"
_IS_REC = "rec"


def _one_of(kind: Any, name: str) -> Callable[[Any], Any]:
    return words.word({word: word for word in get_args(kind)}, name)


REC_ROWS: tuple[Row, ...] = (
    summed("algorithm.advantage_fn_args.std_normalize", "norms", needs=_IS_REC),
    *(
        to(f"{_ARGS}.{name}", target, needs=needs, default=default, via=via)
        for name, target, needs, default, via in (
            ("clip_mode", "rec_clip_mode", _IS_REC, "none", _one_of(RECClip, "clip_mode")),
            ("epsilon_low", "rec_epsilon_low", "rec clip", 0.2, words.number),
            ("epsilon_high", "rec_epsilon_high", "rec clip", 0.2, words.number),
            ("epsilon_low_prime", "rec_epsilon_low_prime", "rec ring", 0.6, words.number),
            ("epsilon_high_prime", "rec_epsilon_high_prime", "rec ring", 2.0, words.number),
            ("weight", "rec_weight", _IS_REC, "none", _one_of(RECWeight, "weight")),
            ("temp", "rec_weight_temp", "rec advantage weight", 1.0, words.number),
            ("regularizer", "rec_regularizer", _IS_REC, "none", _one_of(RECRegularizer, "regularizer")),
            ("regularizer_coef", "rec_regularizer_coef", "rec regularizer", 0.0, words.number),
        )
    ),
)


def _where(name: str, *chosen: str) -> Condition:
    """Condition that `name` has a value among `chosen`; a missing value counts as `none`."""

    def condition(look: Look) -> str:
        value = look(f"trinity.{_ARGS}.{name}") or "none"
        return CONDITIONS[_IS_REC](look) or ("" if value in chosen else f"{name}: {value} does not read it")

    return condition


REC_CONDITIONS: Mapping[str, Condition] = {
    "rec clip": _where("clip_mode", "one-side", "two-side", "ring"),
    "rec ring": _where("clip_mode", "ring"),
    "rec advantage weight": _where("weight", "advantage"),
    "rec regularizer": _where("regularizer", "forward-kl", "k2"),
}
