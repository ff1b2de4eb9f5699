"""Reward-model training before anything starts: where the number is read, and what the role needs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.configs.sections.model import ModelArgs
from roll.configs.strategies.table import STRATEGIES
from roll.errors import StrategyError
from roll.models.loading import load_model
from roll.pipeline.rm.rm_config import REWARD_TRAIN, RMConfig
from roll.pipeline.rm.rm_pipeline import read_at_the_end
from roll.pipeline.rows.row_config import row_plan
from roll.run.start.preflight import machine_report
from roll.types.batch import PairRows, Rows
from roll.utils.secrets import is_secret_key

PADDING = 9


def test_the_number_is_read_behind_the_end_of_the_answer_and_before_padding() -> None:
    """The last row ends with tokens that count for nobody: what the template writes behind the answer, and before it
    the padding token, at which Hugging Face does not read."""
    ids = [[1, 2, 3], [1, 4, 5, 6, PADDING, 7]]
    masks = [[False, True, True], [False, True, True, True, True, False]]
    flat = Rows.of(ids, masks)
    names = ("lengths", "input_ids", "response_mask", "loss_weights")
    margins = np.array([0.5, 0.5], np.float32)
    pairs = PairRows(**{name: getattr(flat, name) for name in names}, margins=margins)
    rows = read_at_the_end(pairs, PADDING)
    assert rows.lengths.tolist() == [4, 5]
    assert rows.input_ids.tolist() == [1, 2, 3, PADDING, 1, 4, 5, 6, PADDING]
    assert np.flatnonzero(rows.response_mask).tolist() == [3, 8]
    assert rows.margins.tolist() == [0.5, 0.5]


def config(**changed: Any) -> RMConfig:
    return RMConfig.model_validate({"pretrain": "model", "num_gpus_per_node": 1} | changed)


def test_a_validation_is_scored_by_the_model_that_learns() -> None:
    role: dict[str, Any] = {"strategy_args": {"strategy_name": "deepspeed_train"}, "device_mapping": [0]}
    assert row_plan(config(reward_train=role)).scoring == frozenset()
    assert row_plan(config(reward_train=role, validation={})).scoring == {"reward_train"}
    assert config(reward_train=role, margin_key="lead").margin_column == "lead"
    assert not is_secret_key("margin_key")  # or copies of the configuration would hide the column's name


def test_a_model_whose_head_gives_several_numbers_is_refused_before_a_run(
    make_tiny_model_dir: Callable[..., Path],
) -> None:
    def said(model: Path) -> list[str]:
        role = {"strategy_args": {"strategy_name": "deepspeed_train"}, "device_mapping": [0]}
        report = machine_report(config(pretrain=str(model), reward_train=role, track_with=[]))
        return [problem.text for problem in report.problems if "reward_train" in problem.text]

    assert said(make_tiny_model_dir()) == said(make_tiny_model_dir(num_labels=1)) == []
    for labels in (2, 3):
        model = make_tiny_model_dir(num_labels=labels)
        assert f"gives {labels} numbers (config.json: id2label), and the reward is one" in said(model)[0]
        with pytest.raises(StrategyError, match="other shapes than a qwen2 model with one label"):
            load_model(ModelArgs(model_name_or_path=str(model), dtype="fp32"), "reward")


def test_the_strategies_that_train_a_reward_head() -> None:
    able = {name for name, spec in STRATEGIES.items() if REWARD_TRAIN.head in spec.heads}
    assert able == {"deepspeed_train", "fsdp2_train", "megatron_train"}
