"""Features of strategies: one row each, one sentence about those that lack it, and what specs may hold."""

import pickle
from dataclasses import fields, replace
from typing import Any

import pytest

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import FEATURES, Feature
from roll.configs.strategies.spec import StrategySpec
from roll.configs.strategies.table import feature_problem, strategies_with
from roll.configs.tables.roles import ACTOR_INFER, ACTOR_TRAIN, REFERENCE, Role


def choice(role: Role, name: str) -> Choice:
    return Choice(role, WorkerConfig.model_validate({"strategy_args": {"strategy_name": name}}))


@pytest.mark.parametrize("feature", Feature)
def test_every_feature_has_a_row_whose_key_a_role_reads_and_a_strategy_that_has_it(feature: Feature) -> None:
    row = FEATURES[feature]
    assert row.does.split()[0].isalpha() and not row.does.endswith(".")
    reading = {role.use for role in (ACTOR_TRAIN, ACTOR_INFER, REFERENCE) if not row.key or _is_read(role, row.key)}
    assert reading & set(row.uses)
    assert any(strategies_with(feature, role.use) for role in (ACTOR_TRAIN, ACTOR_INFER, REFERENCE))


def _is_read(role: Role, key: str) -> bool:
    return any(f"{key}.".startswith(f"{read}.") for read in role.reads)


def test_a_spec_takes_features_and_has_no_switches() -> None:
    assert [field.name for field in fields(StrategySpec) if field.type == "bool"] == []
    assert feature_problem(choice(ACTOR_TRAIN, "fsdp2_train"), Feature.LORA, "all-linear") is None
    assert feature_problem(choice(REFERENCE, "hf_infer"), Feature.SEQUENCE_PACKING, "true") is None
    given: tuple[Any, ...] = ({Feature.LORA}, ["lora"], (Feature.LORA,), frozenset({"lora"}))
    for features in given:
        spec = StrategySpec("mine", {"train": "mine:Class"}, supports=features)
        assert spec.supports == frozenset({Feature.LORA})
        assert pickle.loads(pickle.dumps(spec)) == spec == replace(spec)
    assert StrategySpec("mine", {}).supports == frozenset()


@pytest.mark.parametrize(
    ("role", "name", "feature", "value", "key", "text"),
    [
        (
            ACTOR_TRAIN, "megatron_train", Feature.TORCH_COMPILE, "true", "",
            "actor_train.use_torch_compile: true with megatron_train, which does not compile its model. Supported by: "
            "deepspeed_train, fsdp2_train. Use one of them, or remove it.",
        ),
        (
            ACTOR_TRAIN, "fsdp2_train", Feature.MTP_TRAINING, "joint", "",
            "actor_train.mtp_training_mode: joint with fsdp2_train, which does not train MTP heads. "
            "Supported by: megatron_train. Use it, or set it to disabled.",
        ),
        (
            ACTOR_INFER, "hf_infer", Feature.SEQUENCE_PACKING, "true", "",
            "actor_infer.use_sequence_packing: true with hf_infer, which does not pack rows. No strategy for "
            "actor_infer does. Set it to false.",
        ),
        (
            ACTOR_INFER, "vllm", Feature.ROUTE_REPORTS, "R3", "actor_train.router_replay.mode",
            "actor_train.router_replay.mode: R3 with actor_infer.strategy_args.strategy_name: vllm, which does not "
            "report which experts its tokens went to. Supported by: hf_infer, sglang. Use one of them, or remove it.",
        ),
    ],
)  # fmt: skip
def test_one_sentence_says_key_value_strategy_who_has_it_and_what_to_do(
    role: Role, name: str, feature: Feature, value: str, key: str, text: str
) -> None:
    problem = feature_problem(choice(role, name), feature, value, key)
    assert problem is not None and problem.text == text
    at = key or f"{role.name}.{FEATURES[feature].key}"
    assert problem.keys == (at, f"{role.name}.strategy_args.strategy_name")


def test_what_is_no_feature_is_refused() -> None:
    with pytest.raises(ValueError, match="'lorra' is not a valid Feature"):
        StrategySpec("mine", {}, supports=frozenset({"lorra"}))  # type: ignore[arg-type]
