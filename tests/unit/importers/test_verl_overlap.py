"""verl's programs whose engines are ahead of the trainer mean the same numbers here."""

from typing import Any

from roll.importers.command import imported_from
from roll.importers.convert import Imported, source_keys
from roll.importers.script import find_command
from roll.importers.verl.files import Composed
from tests.helpers.cases import cases
from tests.unit.importers.test_import import entry
from tests.unit.importers.test_verl_meaning import ACTOR, GRPO, ROLLOUT, at

STREAM = "verl.experimental.fully_async_policy.fully_async_main"
ONE_STEP = "recipe.one_step_off_policy.main_ppo"
COUNTS = (f"{ACTOR}.ppo_mini_batch_size=32", "data.train_files=/d/gsm8k.parquet", "trainer.n_gpus_per_node=4")
ASYNC = ("async_training.staleness_threshold=0.5", "async_training.trigger_parameter_sync_step=2")
ASYNC += ("async_training.require_batches=4", "rollout.total_rollout_steps=5120", "rollout.n_gpus_per_node=4")
OFF = "train_infer_correction.is_weight.enabled"


def of(program: str, *words: str) -> Imported:
    command = find_command(f"python3 -m {program} {' '.join([*GRPO, *COUNTS, *words])}")
    return imported_from(source_keys(Composed(), (), command), "verl")


def test_a_stream_of_prompts_has_steps_between_its_publications() -> None:
    prompts = ("data.train_batch_size=0", "data.gen_batch_size=1")
    found = of(STREAM, *ASYNC, *prompts, "trainer.test_freq=5", "trainer.save_freq=10")
    assert found.is_as_meant
    keys = ("rollout_batch_size", "async_generation_ratio", "max_steps", "eval_steps", "save_steps")
    assert [at(found, key) for key in keys] == [256, 0.5, 20, 5, 10]
    assert at(found, "num_train_epochs") is None
    args = at(found, "actor_train.training_args")
    assert args["per_device_train_batch_size"] * args["gradient_accumulation_steps"] * 4 == 32 * 4
    assert at(found, "force_disable_old_logprobs_recompute") is True and at(found, OFF) is False
    devices = [at(found, f"{role}.device_mapping") for role in ("actor_train", "actor_infer")]
    assert devices == ["list(range(0, 4))", "list(range(4, 8))"] and at(found, "num_gpus_per_node") == 8


def test_a_stream_has_the_defaults_of_its_program() -> None:
    found = of(STREAM)
    assert (at(found, "async_generation_ratio"), at(found, "rollout_batch_size")) == (0.1, 128)
    told = "100 prompts in all are fewer than the 128 of a step"
    assert any(told in change for change in found.changes)


def test_old_log_probs_of_a_stream_may_be_computed_anew() -> None:
    found = of(STREAM, *ASYNC, "async_training.use_rollout_log_probs=false")
    assert at(found, "force_disable_old_logprobs_recompute") is False
    weighted = of(STREAM, *ASYNC, "algorithm.rollout_correction.rollout_is=token")
    assert at(weighted, OFF) is True
    assert not of(STREAM, *ASYNC, "async_training.compute_prox_log_prob=true").is_as_meant


def test_a_warm_up_in_a_stream_counts_what_its_trainer_takes_at_once() -> None:
    found = of(STREAM, *ASYNC, f"{ACTOR}.optim.lr_warmup_steps=10")
    assert at(found, "actor_train.training_args.warmup_steps") == 40


@cases("words, told")
def test_what_a_stream_cannot_have_is_refused(words: list[str], told: str) -> None:
    assert any(told in change for change in of(STREAM, *ASYNC, *words).changes)


@cases("program, outcome")
def test_partial_rollouts_of_another_program_are_no_stream(program: str, outcome: str) -> None:
    words = ("data.train_batch_size=8", "trainer.n_gpus_per_node=2", "+async_training.partial_rollout=true")
    found = of(program, *words)
    assert at(found, "rollout_batch_size") == 8 and "async_generation_ratio" not in found.tree
    assert entry(found, "async_training.partial_rollout")[0] == outcome


def test_a_section_of_a_stream_tells_without_its_program() -> None:
    given = source_keys(Composed(), [*GRPO, *COUNTS, *ASYNC])
    assert imported_from(given, "verl").tree["async_generation_ratio"] == 0.5


def test_one_step_off_policy_samples_a_step_ahead() -> None:
    found = of(ONE_STEP, "data.train_batch_size=64", "rollout.n_gpus_per_node=2", "trainer.total_epochs=3")
    assert found.is_as_meant and at(found, "actor_infer.device_mapping") == "list(range(4, 6))"
    keys = ("rollout_batch_size", "async_generation_ratio", "num_train_epochs", OFF)
    assert [at(found, key) for key in keys] == [64, 1, 3, False]
    assert at(found, "force_disable_old_logprobs_recompute") is False


@cases("words, found")
def test_trainer_and_engines_have_nodes_together_or_apart(words: list[int], found: list[Any]) -> None:
    keys = ("trainer.nnodes", "trainer.n_gpus_per_node", "rollout.nnodes", "rollout.n_gpus_per_node")
    imported = of(ONE_STEP, "data.train_batch_size=64", *(f"{k}={v}" for k, v in zip(keys, words, strict=True)))
    targets = ("num_nodes", "num_gpus_per_node", "actor_train.device_mapping", "actor_infer.device_mapping")
    assert [at(imported, target) for target in targets] == found


SEARCH = ("retriever.url=http://127.0.0.1:8000/retrieve", "retriever.topk=2", "max_turns=2")


def test_search_r1_asks_its_server_in_turns() -> None:
    """Its loop has max_turns calls, and one more answer."""
    found = of("verl.trainer.main_ppo", f"{ROLLOUT}.n=1", f"{ROLLOUT}.n_agent=5", *SEARCH, "data.max_obs_length=500")
    env = at(found, "custom_envs.Training")
    assert found.pipeline == "agentic" and (env["env_type"], env["max_steps"]) == ("roll_qa", 3)
    assert env["tool_wrapper"]["tool_configs"][0]["tool_args"] == {"search_url": SEARCH[0][14:], "topk": 2}
    assert at(found, "train_env_manager.group_size") == 5
    assert entry(found, f"{ROLLOUT}.n") == ("not available", f"{ROLLOUT}.n_agent is 5 and counts")


@cases("program, word, outcome")
def test_keys_of_a_fork_are_known(program: str, word: str, outcome: str) -> None:
    found = of(program, word, "data.val_files=/d/gsm8k.parquet")
    key = word.partition("=")[0]
    assert entry(found, key)[0] == outcome and "does not know" not in entry(found, key)[1]
    assert at(found, "validation.generating_args.temperature") == (0.6 if "val_temp" in key else 0)
    assert ("is_use_additional_prompts" in found.tree) is ("rejection_sample=true" in word), "groups are left out"
