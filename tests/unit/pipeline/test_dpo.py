"""Direct preference optimization before anything starts: roles, arithmetic, what is wrong with the settings; and the
log-probs that are kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.configs.checks.roles import batching_problems
from roll.distributed.executor.blueprint import BatchLimits
from roll.errors import StrategyError
from roll.features.lora.checks import run_problems
from roll.pipeline.dpo.dpo_config import DPOConfig, dpo_plan, dpo_problems, dpo_rows, dpo_warnings
from roll.pipeline.dpo.dpo_loss import CachedLogProbs
from roll.types.batch import Rows

LORA = {"model_args": {"lora_target": "all-linear"}}


def config(**changed: Any) -> DPOConfig:
    actor = {
        "strategy_args": {"strategy_name": "deepspeed_train"},
        "device_mapping": [0, 1],
        "training_args": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3},
    } | changed.pop("actor_train", {})
    reference = {"strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": [0]}
    return DPOConfig.model_validate(
        {"pretrain": "model", "num_gpus_per_node": 2, "actor_train": actor, "reference": reference} | changed
    )


def test_a_sample_is_a_pair_of_rows_that_are_in_one_micro_batch() -> None:
    plan = dpo_plan(config())
    train = plan.trains["actor_train"]
    assert (train.micro_batch_size, train.samples_per_update, train.rows_together) == (8, 48, 2)
    limits = BatchLimits.for_training(config().actor_train, train)
    assert (limits.num_rows, limits.together) == (8, 2)
    rows = {row[0]: row[1] for row in dpo_rows(config(), plan)}
    assert rows["actor_train"].startswith("24 pairs per update (4 x 3 x 2)")
    assert rows["reference"] == "reference: log-probs of every row once, in the first epoch"


def test_pairs_fit_micro_batches_and_ipo_takes_no_smoothing() -> None:
    short = {"use_dynamic_batching_in_train": True, "max_tokens_per_microbatch_in_train": 100}
    given = config(sequence_length=64, actor_train=short)
    (problem,) = batching_problems(DPOConfig.role_table["actor_train"], given.actor_train, 64, ("sequence_length",))
    assert "100 must be at least 2 sequences of one pair, 128 tokens" in problem.text
    (problem,) = dpo_problems(config(ipo=True, label_smoothing=0.1))
    assert problem.text.startswith("label_smoothing: 0.1 does nothing with ipo: true")


def test_the_reference_is_a_model_of_its_own_the_policy_without_adapters_or_none() -> None:
    assert set(config().model_roles) == {"actor_train", "reference"}
    assert list(dpo_problems(config())) == [] and list(dpo_warnings(config())) == []
    (missing,) = dpo_problems(config(reference=None))
    assert "reference is missing" in missing.text

    for changed, word in (({"actor_train": LORA}, "LoRA"), ({"reference_free": True}, "reference_free")):
        given = config(**changed)
        assert set(given.model_roles) == {"actor_train"}
        assert list(dpo_problems(given)) == [] and [word in text for text in dpo_warnings(given)] == [True]
        assert list(dpo_problems(config(reference=None, **changed))) == []
    assert dpo_plan(config(actor_train=LORA)).scoring == {"actor_train"}
    assert dpo_plan(config(reference_free=True)).scoring == frozenset()

    other = {"strategy_args": {"strategy_name": "hf_infer"}, "model_args": {"model_name_or_path": "another"}}
    (wrong,) = run_problems(config(actor_train=LORA, reference=other))
    assert "another is not the model of actor_train" in wrong.text


def test_log_probs_are_asked_for_once_and_come_back_from_a_checkpoint(tmp_path: Path) -> None:
    rows = Rows.of([[1, 2], [3, 4, 5], [6, 7]], [[False, True], [False, True, True], [False, True]])
    kept = CachedLogProbs(rows, "model")
    places = np.array([2, 1, 1])
    assert kept.missing(places).tolist() == [1, 2]
    kept.store(np.array([1, 2]), {0: np.array([0, -1.5, -2.5], np.float32), 1: np.array([0, -4], np.float32)})
    assert kept.missing(np.array([0, 1, 2])).tolist() == [0]
    assert kept.of(places).tolist() == [0, -4, 0, -1.5, -2.5, 0, -1.5, -2.5]

    kept.save(tmp_path)
    again, other = CachedLogProbs(rows, "model"), CachedLogProbs(rows, "another")
    again.load(tmp_path)
    other.load(tmp_path)
    assert again.of(places).tolist() == kept.of(places).tolist() and again.missing(places).tolist() == []
    assert other.missing(np.array([0, 1, 2])).tolist() == [0, 1, 2]
    without = CachedLogProbs(rows, "model")
    without.load(tmp_path / "of_a_run_without_reference")
    assert without.missing(np.array([0, 1, 2])).tolist() == [0, 1, 2]
    with pytest.raises(StrategyError, match="not finite"):
        kept.store(np.array([0]), {0: np.array([0, np.nan], np.float32)})
