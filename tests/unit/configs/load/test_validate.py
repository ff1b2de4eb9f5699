"""Shape of a configuration: every problem at once, each with path, value and what to write instead."""

from typing import Any

import pytest

from roll.configs.base import Settings
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from tests.helpers.cases import cases
from tests.helpers.configs import checked, config, problems, tree


def test_the_minimal_configuration_has_no_problem_and_no_warning() -> None:
    result = checked()
    assert (result.problems, result.warnings) == ((), ())
    assert problems() == []


@pytest.mark.parametrize("name", ["fsdp", "fsdp2"])
def test_another_systems_name_of_a_strategy_is_that_of_the_one_that_fits_the_role(name: str) -> None:
    key = "strategy_args.strategy_name"
    given: dict[str, Any] = {f"actor_train.{key}": name, f"reference.{key}": name, f"actor_infer.{key}": name}
    result = checked(given)
    assert {f"{at}: {name} is taken as fsdp2_train or fsdp2_infer, whichever fits the role." for at in given} <= set(
        result.warnings
    )
    assert result.config is not None
    names = [result.config.value(at) for at in given]
    assert names == ["fsdp2_train", "fsdp2_infer", name]  # a rollout engine has none of them


@cases("changes, message")
def test_a_wrong_key_or_value_is_named_with_its_path(changes: dict[str, Any], message: str) -> None:
    assert [problem.text for problem in checked(changes).problems] == [message]


def test_all_problems_are_reported_at_once_and_the_rest_is_still_checked() -> None:
    found = problems(
        {
            "rolout_batch_size": 3,
            "max_steps": "many",
            "actor_train.model_args.dtyp": "fp32",
            "actor_infer.strategy_args.strategy_name": "vlm",
            "actor_train.device_mapping": [0, 0],
        }
    )
    assert len(found) == 5
    assert any("unknown strategy 'vlm'. Did you mean vllm?" in text for text in found)
    assert any("names device 0 more than once" in text for text in found)


def test_a_misspelt_key_hides_what_follows_from_the_default_of_the_one_that_was_meant() -> None:
    """With its default of 128 the batch would not divide by 96: a consequence of the typing error, and no news."""
    args = "actor_train.training_args.per_device_train_batch_size"
    found = problems({"rollout_batch_size": ..., "rolout_batch_size": 96, args: 48, "num_gpus_per_node": 8})
    assert [text.split(":")[0] for text in found] == ["rolout_batch_size"]
    texts = problems({"rollout_batch_siz": 3, "num_return_sequences_in_group": 7})
    assert [text[:40] for text in texts] == [
        "rollout_batch_siz: unknown key (value 3)",
        "actor_train: a step has 32 x 7 = 224 sam",
    ]
    (text,) = problems({"rollout_batch_size": ..., "rollout_size": 3, "num_return_sequences_in_group": 7})
    assert text == "rollout_size: unknown key (value 3). Did you mean rollout_batch_size?"
    (text,) = problems({"actor_train.training_args.learning_rat": 1})
    assert text.endswith("Did you mean learning_rate?")


def test_keys_without_effect_warn_or_fail_by_what_they_ask_for() -> None:
    assert checked({"l2": 0.0}).warnings == ("l2: 0.0 does nothing here: ROLL declares this key and never reads it.",)
    beams = "actor_infer.generating_args.num_beams"
    assert checked({beams: 1}).problems == ()
    assert problems({beams: 2}) == [f"{beams}: 2 is not implemented yet. Remove it, or set 1."]
    assert checked({"actor_train.training_args.num_train_epochs": 1.0}).warnings == ()
    assert checked({"actor_train.training_args.num_train_epochs": 50}).warnings == (
        "actor_train.training_args.num_train_epochs: 50 does nothing here: the run's max_steps or num_train_epochs "
        "counts.",
    )


def test_other_spellings_mean_the_same() -> None:
    made = checked(
        {
            "actor_train.model_args.flash_attn": "fa2",
            "actor_train.model_args.dtype": "float32",
            "actor_infer.generating_args.top_k": -1,
            "kl_loss_type": "low_var_kl",
            "kl_penalty": "mse",
            "resume_from_checkpoint": "auto",
            "track_with": "wandb",
            "eval_on_startup": False,
            "total_epochs": 3,
            "actor_train.data_args.path": "a.jsonl",
            "actor_train.data_args.file_name": ...,
            "actor_train.data_args.dataset_dir": "data",
            "actor_train.model_args.use_remove_padding": True,
        }
    )
    assert made.config is not None and made.problems == ()
    assert made.warnings == ("actor_train.data_args.dataset_dir does nothing here: file_name holds the whole path.",)
    assert made.config.actor_train.use_sequence_packing is True
    model = made.config.actor_train.model_args
    assert (model.attn_implementation, model.dtype) == ("fa2", "fp32")
    assert made.config.actor_infer.generating_args.top_k == 0
    assert (made.config.kl_loss_type, made.config.kl_penalty) == ("k3", "k2")
    assert made.config.resume_from_checkpoint is True
    assert made.config.track_with == ("wandb",)
    assert made.config.val_before_train is False
    assert made.config.num_train_epochs == 3 and made.config.counts_epochs
    assert made.config.actor_train.data_args.file_name == ("a.jsonl",)


@cases("words, trackers")
def test_the_words_of_verl_name_trackers(words: object, trackers: list[str]) -> None:
    made = checked({"track_with": words})
    assert made.problems == () and made.config is not None
    assert [*made.config.track_with] == trackers


def test_two_spellings_that_disagree_are_a_problem() -> None:
    changes = {"actor_train.model_args.flash_attn": "fa2", "actor_train.model_args.attn_implementation": "sdpa"}
    assert problems(changes) == [
        "actor_train.model_args.flash_attn: 'fa2' contradicts actor_train.model_args.attn_implementation: 'sdpa'; "
        "both mean the same. Keep one."
    ]
    changes = {"actor_train.model_args.use_remove_padding": True, "actor_train.use_sequence_packing": False}
    assert problems(changes) == [
        "actor_train.model_args.use_remove_padding: true contradicts actor_train.use_sequence_packing: false; both "
        "mean the same. Keep one."
    ]


def test_null_is_as_good_as_no_key_where_it_has_no_meaning_of_its_own() -> None:
    made = checked(
        {
            "actor_infer.strategy_args.strategy_config": None,
            "actor_train.model_args": None,
            "system_envs": None,
            "max_steps": None,
            "lambd": None,
        }
    )
    assert made.config is not None and made.problems == ()
    assert (made.config.max_steps, made.config.lambd, made.config.system_envs) == (500, 0.95, {})
    assert made.config.actor_infer.strategy_config == {}
    assert problems({"nonsense": None})[0].startswith("nonsense: unknown key (value null).")


def test_secrets_do_not_appear_in_messages() -> None:
    result = checked({"rewards.math.own_api_key": "sk-12345", "api_key": "sk-67890"})
    said = " ".join([*result.warnings, *(problem.text for problem in result.problems)])
    assert "rewards.math.own_api_key" in said and "sk-" not in said


def test_a_configuration_is_frozen_and_leaves_its_tree_alone() -> None:
    with pytest.raises(ValueError, match="frozen"):
        config().actor_train.training_args.learning_rate = 1.0
    given = tree({"actor_train.model_args.flash_attn": "fa2", "nonsense": 1})
    before = repr(given)
    from roll.configs.load.validate import validate

    validate(RLVRConfig, given)
    assert repr(given) == before


def test_defaults_that_follow_from_other_keys_are_filled_in() -> None:
    made = config(
        {
            "adv_estimator": ...,
            "reward_pretrain": "org/critic",
            "critic.strategy_args.strategy_name": "deepspeed_train",
            "actor_infer.strategy_args.strategy_config": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
            "actor_infer.device_mapping": "list(range(0,8))",
            "validation.data_args.file_name": "test.jsonl",
            "rewards.math": {
                "worker_cls": "roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker",
                "tag_included": ["gsm8k"],
            },
        }
    )
    assert made.adv_estimator == "gae"
    assert made.critic is not None and made.critic.model_args.model_name_or_path == "org/critic"
    assert made.actor_infer.model_args.model_name_or_path == "org/model"
    assert (made.actor_infer.num_gpus_per_worker, made.actor_infer.num_workers) == (4, 2)
    assert made.validation is not None and made.validation.generating_args.temperature == 0
    assert (made.rewards["math"].reward, made.rewards["math"].name) == ("math_rule", "rewards.math")
    assert made.rewards["math"].tag_included == ("gsm8k",)


def all_settings(cls: type[Settings], seen: set[type[Settings]]) -> set[type[Settings]]:
    from roll.configs.base import nested_class

    seen.add(cls)
    for info in cls.model_fields.values():
        inner = nested_class(info.annotation)
        if inner is not None and inner not in seen:
            all_settings(inner, seen)
    return seen


def test_every_key_has_a_help_text() -> None:
    bare = [
        f"{cls.__name__}.{name}"
        for cls in all_settings(RLVRConfig, set())
        for name, info in cls.model_fields.items()
        if not info.description
    ]
    assert bare == []


def test_one_cause_is_one_message() -> None:
    found = problems({"actor_train": ...})
    assert any("actor_train.strategy_args.strategy_name is missing" in text for text in found)
    assert not any("pretrain is missing" in text for text in found)


@pytest.mark.parametrize("key", ["output_dir", "checkpoint_config.output_dir", "pretrain"])
def test_a_place_below_a_home_is_written_out(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    value: Any = config({key: "~/runs/a"})
    for part in key.split("."):
        value = getattr(value, part)
    assert value == "/home/user/runs/a"


def test_the_defaults_below_a_place_are_written_out_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    settings = config({"output_dir": "~/runs", "pretrain": "~/model"})
    assert (settings.logging_dir, settings.rollout_dump_dir) == ("/home/user/runs/logs", "/home/user/runs/rollouts")
    assert settings.actor_infer.model_args.model_name_or_path == "/home/user/model"


@pytest.mark.parametrize("name", ["../x", "..", "x" * 300])
def test_a_run_is_called_by_a_name_and_not_by_a_path(name: str) -> None:
    (text,) = problems({"exp_name": name})
    assert text.startswith("exp_name: ")
    assert "must be a name, not a path" in text or "at most 200 bytes" in text


def test_a_run_may_have_any_name_that_a_folder_may_have() -> None:
    assert problems({"exp_name": "Qwen2.5 7B (größer), v1_2"}) == []


def test_a_value_that_was_filled_in_is_blamed_on_the_key_it_came_from() -> None:
    texts = problems({"pretrain": 3, "actor_infer": ..., "actor_inf_er_": {"strategy_args": {"strategy_name": "vllm"}}})
    assert "pretrain: 3 must be text (put quotes around it)." in texts
    assert [text for text in texts if "model_name_or_path" in text and not text.startswith("actor_")] == []
    texts = problems({"actor_infer.device_mapping": [999_999], "num_gpus_per_node": 1})
    assert "num_nodes: 1000000 must be less than or equal to 100000." in texts


@cases("given, ours")
def test_a_key_of_another_system_is_answered_with_ours(given: dict[str, Any], ours: str) -> None:
    found = [str(problem) for problem in checked(given).problems if f" Here {ours}." in str(problem)]
    assert len(found) == 1, checked(given).problems
