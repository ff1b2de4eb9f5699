"""Trinity-RFT's keys of DPO: its rows are fine-tuning's with two answers, its learner is actor_train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from roll.importers import words
from roll.importers.rows import Look, Near, Row, Sum, Table, lacks, needless, summed, to
from roll.importers.trinity.rows import BUFFER, EMBEDDED, own
from roll.importers.trinity.sft import (
    CONDITIONS_OF_ROWS,
    OF_ROWS,
    OPTIMIZER_ROWS,
    ROWS_RENAMED,
    SUMS_OF_ROWS,
    longest,
    of_rows,
    rows_derived,
)
from roll.importers.verl.sft_rows import ROLE, SFT, tokens

_OWN = "trinity."
_FORMAT = f"{BUFFER}.format"
_BETA, _COEFFICIENT = "algorithm.policy_loss_fn_args.beta", "algorithm.kl_loss_fn_args.kl_coef"
_LEARNER = "actor_train"
_DEFAULT_BETA = 0.1


def _moved(key: str) -> str:
    return f"{_LEARNER}{key.removeprefix(ROLE)}" if key.startswith(f"{ROLE}.") else key


def _of_pairs(row: Row) -> Row:
    return replace(row, targets=tuple(map(_moved, row.targets)))


def _sum_of_pairs(sum: Callable[[Look], Sum]) -> Callable[[Look], Sum]:
    def moved(look: Look) -> Sum:
        made = sum(look)
        settings = {_moved(key): value for key, value in made.settings.items()}
        near = made.near.replace("the longest row", "the two rows of a pair")
        return replace(made, settings=settings, text=made.text.replace(" rows ", " pairs "), near=near)

    return moved


def _placement(look: Look) -> Sum:
    """The reference takes turns with the learner."""
    made = _sum_of_pairs(SFT.sums["placement"])(look)
    scorer = words.scorer(look("model.strategy"))
    own = {
        "reference.device_mapping": made.settings[f"{_LEARNER}.device_mapping"],
        "reference.strategy_args.strategy_name": scorer.value if isinstance(scorer, Near) else scorer,
    }
    return replace(made, settings={**made.settings, **own}, text=f"{made.text} The reference is on them as well.")


def _beta(look: Look) -> Sum:
    given = [key for key in (_BETA, _COEFFICIENT) if look.is_given(f"{_OWN}{key}")]
    beta = look.amount(f"{_OWN}{given[0]}") if given else _DEFAULT_BETA
    lost = {f"{_OWN}{_COEFFICIENT}": f"{_BETA} counts; a KL beside DPO's loss is not here"} if len(given) == 2 else {}
    return Sum({"beta": beta}, f"beta: {beta:g}.", lost=lost)


def _columns(look: Look) -> Sum:
    """The prompt's: messages, unless it is said to be plain."""
    plain = look(f"{_OWN}{_FORMAT}.prompt_type", "messages") == "plaintext"
    name = look(f"{_OWN}{_FORMAT}.prompt_key", "prompt") if plain else look(f"{_OWN}{_FORMAT}.messages_key", "messages")
    return Sum({"prompt_key": name}, f"prompt_key: {name}; texts and messages are told apart row by row.")


_ROWS = (
    Row("algorithm.algorithm_type", note="direct preference optimization: start_dpo_pipeline.py"),
    summed(_BETA, "beta", _DEFAULT_BETA),
    summed(_COEFFICIENT, "beta"),
    to("algorithm.policy_loss_fn_args.label_smoothing", "label_smoothing", via=words.number, idle=(0, 0.0)),
    needless("algorithm.repeat_times", "a row is a pair of answers"),
    needless("algorithm.kl_loss_fn", "the loss of DPO compares with the reference by itself"),
    lacks("algorithm.policy_loss_fn", "the loss is that of DPO; ipo and sft_loss_coef change it (docs/dpo.md)", "dpo"),
    lacks("algorithm.**", "the loss is that of DPO: beta, label_smoothing (docs/dpo.md)"),
    *(summed(f"{_FORMAT}.{key}", "columns") for key in ("prompt_type", "prompt_key", "messages_key")),
    to(f"{_FORMAT}.chosen_key", "chosen_key"),
    to(f"{_FORMAT}.rejected_key", "rejected_key"),
    to(f"{EMBEDDED}.actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu", "reference.infer_batch_size"),
    *OF_ROWS,
)
TRINITY_DPO = Table(
    "trinity",
    "dpo",
    tuple(
        map(
            _of_pairs,
            (
                *OPTIMIZER_ROWS,
                *map(own, _ROWS),
                *(row for row in SFT.rows if row.sum != "columns" and not row.key.startswith("data.multiturn")),
            ),
        )
    ),
    {
        **{name: _sum_of_pairs(sum) for name, sum in SUMS_OF_ROWS.items()},
        "placement": _placement,
        "tokens": _sum_of_pairs(tokens(lambda look: 2 * longest(look))),
        "beta": _beta,
        "columns": _columns,
    },
    CONDITIONS_OF_ROWS,
    lambda key: of_rows(ROWS_RENAMED, key),
    rows_derived,
)
