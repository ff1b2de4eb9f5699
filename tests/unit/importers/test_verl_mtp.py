"""verl's model.mtp becomes mtp_training_mode."""

from __future__ import annotations

from typing import Any

from roll.importers.command import imported_from
from roll.importers.convert import Imported, read
from tests.helpers.cases import cases

AT = "actor_rollout_ref.model.mtp"


def imported(strategy: str = "megatron", **keys: Any) -> Imported:
    words = ["actor_rollout_ref.rollout.n=8", "data.train_batch_size=8", f"actor_rollout_ref.actor.strategy={strategy}"]
    return imported_from(read(None, [*words, *(f"{AT}.{name}={value}" for name, value in keys.items())]))


def outcomes(found: Imported) -> dict[str, str]:
    return {entry.key: entry.outcome for entry in found.entries if entry.key.startswith(AT)}


@cases("keys, mode, factor")
def test_training_is_joint_unless_the_model_is_kept_from_it(keys: dict[str, Any], mode: str, factor: float) -> None:
    train = imported(enable=True, enable_train=True, **keys).tree["actor_train"]
    assert (train["mtp_training_mode"], train["mtp_loss_scaling_factor"]) == (mode, factor)


def test_a_head_that_is_not_trained_writes_nothing() -> None:
    asked: list[dict[str, Any]] = [
        {"enable": True},
        {"enable_train": True},
        {"enable": True, "enable_train": False},
        {},
    ]
    for keys in asked:
        found = imported(**keys)
        assert "mtp_training_mode" not in found.tree["actor_train"]
        assert set(outcomes(found).values()) <= {"asks for nothing"}


def test_other_trainers_and_engines_have_none() -> None:
    found = imported("fsdp", enable=True, enable_train=True, enable_rollout=True)
    assert "mtp_training_mode" not in found.tree["actor_train"]
    told = outcomes(found)
    assert told[f"{AT}.enable_train"] == told[f"{AT}.enable_rollout"] == "not available"


def test_what_asks_for_no_head_is_not_told_as_lost() -> None:
    """Defaults of verl's own, as its generated files have them."""
    found = imported(_target_="verl.workers.config.MtpConfig", enable=False, method="mtp", num_speculative_tokens=1)
    assert set(outcomes(found).values()) == {"asks for nothing"}
    drafted = imported(enable=True, enable_rollout=True, method="mtp")
    assert outcomes(drafted)[f"{AT}.method"] == "not available"


@cases("more, is_trained")
def test_a_head_that_could_not_be_trained_here_is_not_asked_for(more: str, is_trained: bool) -> None:
    words = ["rollout.n=8", "actor.strategy=megatron", "model.mtp.enable=true", "model.mtp.enable_train=true", more]
    found = imported_from(read(None, ["data.train_batch_size=8", *(f"actor_rollout_ref.{word}" for word in words)]))
    assert ("mtp_training_mode" in found.tree["actor_train"]) == is_trained
    assert (outcomes(found)[f"{AT}.enable_train"] == "not available") == (not is_trained)
