"""What an import takes for granted, cannot serve or does not know is told, whether or not a key asks for it."""

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Imported
from roll.importers.given import read
from tests.unit.importers.test_verl_meaning import ACTOR, GRPO, ROLLOUT

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


@pytest.mark.parametrize(
    "word",
    [
        "reward_model.sandbox_fusion_url=https://x/run_code",
        "reward_model.sandbox_fusion.url=https://x/run_code",
        "reward_model.sandbox_fusion.mode=x",
        "reward_model.reward_loop_module_path=mine.py",
        "reward_model.no_such_key=5",
        "reward_model.model.update=before",
        "reward_model.model.optim.lr=1e-6",
        "reward_model.model.beta_train=0.05",
        "reward_model.model.no_such_key=5",
        "reward_model.model.trust_remote_code=true",
        "data.return_mine=true",
        "algorithm.pf_ppo.mine=1",
        f"{ACTOR}.policy_loss.mine=1",
        f"{ACTOR}.entropy_target=0.3",
        f"{ROLLOUT}.agent.agent_loop_manager_class=mine.Loops",
        f"{ROLLOUT}.agent.custom_async_server.path=mine.py",
        f"{ROLLOUT}.agent.mine=1",
        f"{ROLLOUT}.trace.mine=1",
    ],
)
def test_no_pattern_of_keys_swallows_one_that_means_something(word: str) -> None:
    assert not of(word).is_as_meant, word


@pytest.mark.parametrize(
    "word",
    [
        "reward_model.sandbox_fusion_url=null",
        "reward_model.launch_reward_fn_async=true",
        "reward_model.num_workers=8",
        "reward_model.model.update=none",
        "reward_model.model.use_remove_padding=true",
        "data.return_raw_chat=true",
        f"{ACTOR}.entropy_checkpointing=true",
        f"{ACTOR}.fsdp_config.entropy_checkpointing=true",
        f"{ROLLOUT}.agent.num_workers=8",
        f"{ROLLOUT}.trace.token2text=true",
    ],
)
def test_keys_that_change_no_meaning_stay_known(word: str) -> None:
    assert of(word).is_as_meant, word
