"""What a configuration says against itself."""

from typing import Any

import pytest
from pydantic import ValidationError

from roll.pipeline.rlvr.rlvr_checks import rlvr_warnings
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems, warnings_of


def test_what_does_nothing_or_is_of_others_is_said_where_it_matters() -> None:
    theirs = {"worker_cls": "my.Judge", "device_mapping": [3], "model_args": {"model_name_or_path": "org/judge"}}
    assert not [text for text in problems({"rewards.math": theirs}) if "run on the CPU" in text]
    said = "eval_steps: 20 does nothing: there is no section validation."
    assert said in warnings_of(config({"eval_steps": 20}))
    assert not [text for text in warnings_of(config()) if text.startswith("eval_steps")]
    assert warnings({"max_grad_norm": 0, "init_kl_coef": 0}) == warnings({})


@cases("changes, message")
def test_a_contradiction_is_one_message_that_names_keys_and_values(changes: dict[str, Any], message: str) -> None:
    found = problems(changes)
    assert len(found) == 1, found
    assert found[0].startswith(message)


def warnings(changes: dict[str, Any]) -> list[str]:
    made = config(changes)
    return warnings_of(made) + rlvr_warnings(made)


@cases("changes, message")
def test_what_would_have_no_effect_is_said(changes: dict[str, Any], message: str) -> None:
    found = warnings(changes)
    assert len(found) == 1 and found[0].startswith(message), found


def test_norm_scopes_and_variants_are_those_of_the_nearest_key() -> None:
    assert config({}).policy_form.name == "ppo"
    assert config({"pg_variant": "topr"}).policy_form.name == "topr"
    assert config({"pg_variant": "topr", "actor_train.pg_variant": "cispo"}).policy_form.name == "cispo"
    assert config({"norm_std_type": None}).norm_std_type == "default"
    assert config({"norm_std_type": "none"}).norm_std_type is None
    assert config({"norm_mean_type": "leave_one_out"}).norm_mean_type == "leave_one_out"
    with pytest.raises(ValidationError, match="Input should be 'default', 'batch', 'group' or 'running'"):
        config({"norm_std_type": "leave_one_out"})


def test_settings_that_work_otherwise_than_written_say_what_happens() -> None:
    changes = {"actor_infer.strategy_args.strategy_config": {"max_model_len": 40}}
    assert problems(changes) == []
    found = "\n".join(warnings_of(config(changes)))
    assert "sequences end at the engine's 40 tokens, before the 44 of prompt and response: the longest" in found
    assert "leaves 8 of the 12 tokens for its response." in found


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("base", "base has its own wording of ROLL's template; for ROLL's exact wording write a Jinja file."),
    ],
)
def test_a_template_that_is_not_quite_rolls_says_so(template: str, said: str) -> None:
    changes = {"actor_train.data_args.template": template}
    assert problems(changes) == []
    assert f"actor_train.data_args.template: {said}" in rlvr_warnings(config(changes))
    assert rlvr_warnings(config({"actor_train.data_args.template": "qwen3"})) == rlvr_warnings(config())
