"""What an import takes for granted, cannot serve or does not know is told, whether or not a key asks for it."""

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Imported
from roll.importers.given import read
from tests.unit.importers.test_verl_meaning import ACTOR, GRPO

DATA = ("data.train_files=a.parquet", "data.val_files=b.parquet")


def of(*words: str) -> Imported:
    return imported_from(read(None, [*GRPO, *DATA, *words]), "verl")


@pytest.mark.parametrize(
    "told",
    [
        "rewards.verl.reward: math_rule. math-verify compares",
        "Neither rows nor names of files tell data_source",
        "pg_variant: ppo, a ratio per token",
        "validation.generating_args: greedy",
        "resume_from_checkpoint: True",
        "data_args.truncation: error",
    ],
)
def test_what_holds_by_default_is_told_where_no_key_asks_for_it(told: str) -> None:
    assert any(note.startswith("By default:") and told in note for note in of().notes)


def test_a_default_that_differs_here_says_how() -> None:
    assert "second FSDP" in of().defaults["actor_train.strategy_args.strategy_name"]


def test_what_a_key_says_is_not_said_twice() -> None:
    found = of(f"{ACTOR}.clip_ratio=0.1", "custom_reward_function.path=mine.py")
    assert not any("pg_variant" in note or "rewards.verl" in note for note in found.notes)


def test_norms_of_gae_are_told_by_default() -> None:
    assert any("whiten_advantages: true" in note for note in of("algorithm.adv_estimator=gae").notes)
