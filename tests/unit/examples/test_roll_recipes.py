"""A YAML that was written for ROLL gets ROLL's defaults. Recipes in ROLL's shape: test_recipes.py."""

from pathlib import Path
from typing import Any

from roll.configs.load.loader import compose_tree, resolve_tree
from roll.configs.plan.derive import weighs_importance
from roll.run.spec import PIPELINES
from roll.run.start.load import check
from tests.helpers.cases import cases

ASYNC = """
pretrain: model
max_steps: 3
prompt_length: 64
response_length: 64
adv_estimator: reinforce
dual_clip_loss: true
async_generation_ratio: 1
actor_train: {data_args: {file_name: x.jsonl}, strategy_args: {strategy_name: fsdp2_train}, device_mapping: [0]}
actor_infer: {generating_args: {top_k: 20}, strategy_args: {strategy_name: hf_infer}, device_mapping: [1]}
rewards: {math: {reward: math_rule}}
validation: {data_args: {file_name: y.jsonl}}
"""


@cases("more, is_rolls")
def test_a_yaml_of_roll_has_rolls_defaults(more: str, is_rolls: bool, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(ASYNC + more)
    raw = compose_tree(tmp_path, "mine", ())
    loaded = check(PIPELINES["rlvr"], resolve_tree(raw, PIPELINES["rlvr"].config_class()))
    config: Any = loaded.config
    assert any("Written for ROLL" in warning for warning in loaded.warnings) == is_rolls
    sampling, validation = config.actor_infer.generating_args, config.validation.generating_args
    assert (config.actor_train.training_args.learning_rate == 5e-5) == is_rolls
    assert (weighs_importance(config), sampling.top_k) == (not is_rolls, 20)
    assert (sampling.top_p, validation.temperature, validation.top_k) == ((0.7, 0.95, 20) if is_rolls else (1, 0, 0))
    assert config.dual_clip_ratio_c == (1.4 if is_rolls else 3)
