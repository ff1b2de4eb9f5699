"""The types of DeepSpeed's and Megatron's settings are those of the installed packages."""

import dataclasses
from typing import Any

import pytest

from roll.configs.strategies.value_kinds import DEEPSPEED_KINDS, MEGATRON_KINDS, Kinds, kinds_of
from tests.helpers.configs import problems

ZERO = "actor_train.strategy_args.strategy_config.zero_optimization"
RIGHT: dict[str, Any] = {"bool": True, "int": 1, "float": 0.5, "str": "cpu", "dict": {}}


def test_values_of_another_type_than_deepspeeds_are_refused() -> None:
    found = problems(
        {
            "actor_train.strategy_args.strategy_config": {
                "steps_per_print": "often",
                "bf16": 3,
                "zero_optimization": {
                    "stage": 2,
                    "reduce_bucket_size": -5,
                    "allgather_bucket_size": "auto",
                    "sub_group_size": 1e9,
                    "overlap_comm": "yes",
                    "offload_optimizer": {"device": "cpu", "ratio": 2.0},
                },
            }
        }
    )
    assert [text.removeprefix("actor_train.strategy_args.strategy_config.") for text in found] == [
        "steps_per_print: 'often' must be a whole number.",
        "bf16: 3 must be a mapping.",
        "zero_optimization.reduce_bucket_size: -5 must be between 0 and 9.22337e+18.",
        "zero_optimization.overlap_comm: 'yes' must be true or false.",
        "zero_optimization.offload_optimizer.ratio: 2.0 must be between 0 and 1.",
    ]


def test_values_of_another_type_than_megatrons_are_refused() -> None:
    config = {"hidden_dropout": "x", "moe_router_dtype": "fp8", "deterministic_mode": 3, "attention_dropout": 7.0}
    found = problems(
        {
            "actor_train.strategy_args.strategy_name": "megatron_train",
            "actor_train.strategy_args.strategy_config": config,
        }
    )
    for message in (
        "hidden_dropout: 'x' must be a number.",
        "moe_router_dtype: 'fp8' must be one of fp32, fp64.",
        "deterministic_mode: 3 must be true or false.",
        "attention_dropout: 7.0 must be between 0 and 1.",
    ):
        assert f"actor_train.strategy_args.strategy_config.{message}" in found


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ("zero_optimization", "deepspeed.runtime.zero.config:DeepSpeedZeroConfig"),
        ("bf16", "deepspeed.runtime.precision_config:DeepSpeedBF16Config"),
        ("zero_optimization.offload_param", "deepspeed.runtime.zero.offload_config:DeepSpeedZeroOffloadParamConfig"),
        (
            "zero_optimization.offload_optimizer",
            "deepspeed.runtime.zero.offload_config:DeepSpeedZeroOffloadOptimizerConfig",
        ),
    ],
)
def test_deepspeeds_own_classes_take_these_types_and_no_texts_for_numbers(section: str, path: str) -> None:
    module, _, name = path.partition(":")
    cls = getattr(pytest.importorskip(module, reason="deepspeed is not installed"), name)
    fields = {field.alias or key: field for key, field in cls.model_fields.items()}
    for key, kinds in DEEPSPEED_KINDS[section].items():
        (kind,) = kinds.names
        assert key in fields, key
        cls(**{key: RIGHT[kind]})
        if kind in ("int", "float", "bool"):
            with pytest.raises(ValueError, match=key):
                cls(**{key: "nonsense"})


def test_megatrons_own_class_says_the_same_types() -> None:
    transformer = pytest.importorskip("megatron.core.transformer.transformer_config", reason="megatron is missing")
    said = {field.name: field.type for field in dataclasses.fields(transformer.TransformerConfig)}
    for key, kinds in MEGATRON_KINDS.items():
        written = said[key]
        annotation = written if isinstance(written, str) else _source(written)
        own = kinds_of(annotation)
        assert own is not None, (key, annotation)
        assert (own.names, own.choices) == (kinds.names, kinds.choices), key


def _source(annotation: Any) -> str:
    """A type as an annotation would write it."""
    if isinstance(annotation, type):
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace("NoneType", "None")


def test_a_share_is_between_0_and_1() -> None:
    assert MEGATRON_KINDS["hidden_dropout"] == Kinds(frozenset({"float"}), (), 0, 1)
