"""What is wrong with operators, before anything is read."""

from typing import Any

import pytest

from roll.configs.sections.data import DataArgs
from roll.configs.sections.model import ModelArgs
from roll.datasets.chosen_rows import Places
from roll.features.operators.checks import operator_problems, user_function_problems
from tests.helpers.configs import problems

TRAIN, VAL = "actor_train.data_args", "validation.data_args"


def found(*operators: Any, at: str = TRAIN, validation: bool = True, answers: bool = True) -> list[str]:
    places = {TRAIN: {}} | ({VAL: {}} if validation else {})
    args = {key: DataArgs.model_validate({"operators": list(operators)} if key == at else {}) for key in places}
    asked = Places(args, TRAIN, "rlvr", ModelArgs(), has_responses=answers)
    return [problem.text for problem in operator_problems(asked)]


def entry(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


def test_operators_that_work_have_no_problems() -> None:
    assert found("deduplicate", entry("length", max=3, part="response"), "contamination", "own.module:f") == []
    assert found("deduplicate", "data_juicer:text_length_filter", at=VAL) == []


@pytest.mark.parametrize(
    "operator, said",
    [
        ("dedupe", f"{TRAIN}.operators[0].name: 'dedupe' is not of the form package.module:object or one of"),
        (entry("length", maxx=3), f"{TRAIN}.operators[0].args.maxx: unknown key (value 3). Did you mean max?"),
        (entry("length", max="many"), f"{TRAIN}.operators[0].args.max: 'many' must be a whole number."),
        (entry("length", min=5, max=3), f"{TRAIN}.operators[0].args.min: 5 is above max: 3"),
        (entry("deduplicate", similarity=2), f"{TRAIN}.operators[0].args.similarity: 2 must be at most 1."),
    ],
)
def test_names_and_arguments_are_checked(operator: Any, said: str) -> None:
    (problem,) = found(operator)
    assert problem.startswith(said), problem


@pytest.mark.parametrize(
    "operator, said",
    [
        (entry("deduplicate", ngram=3), ".ngram does nothing with similarity: 1"),
        (entry("length"), ": without min and max every row stays."),
        (entry("length", unit="tokens", min=0), ": without min and max every row stays."),
        (entry("pass_rate", column="x", rollouts="dumps", max=0.9), ".column does nothing with rollouts"),
        (entry("pass_rate", solved_at=0.5, max=0.9), ".solved_at does nothing without rollouts"),
        (entry("pass_rate"), ": without min and max every row stays."),
        (entry("quality", scorer_args={"a": 1}, min=0), ".scorer_args does nothing without a scorer."),
        (entry("quality", batch_size=8, min=0), ".batch_size does nothing without a scorer."),
        (entry("quality", missing="keep"), ": without min and max every row stays."),
    ],
)
def test_what_would_be_ignored_is_refused(operator: Any, said: str) -> None:
    (problem,) = found(operator)
    assert problem.startswith(f"{TRAIN}.operators[0].args{said}"), problem


def test_what_is_of_use_without_limits_is_not() -> None:
    useful = [
        entry("deduplicate", ngram=3, similarity=0.8),
        entry("pass_rate", missing="drop"),
        entry("pass_rate", rollouts="dumps", solved_at=0.5, min=0.1),
        entry("quality", scorer="own:score", scorer_args={"a": 1}, batch_size=8),
        entry("quality", missing="drop"),
    ]
    assert found(*useful) == []


def test_rows_of_rlvr_have_no_responses() -> None:
    (problem,) = found(entry("length", part="response", max=3), answers=False)
    assert "rows of this run have no responses" in problem


def test_contamination_needs_something_to_compare_with() -> None:
    assert "there is no validation.data_args" in found("contamination", validation=False)[0]
    assert f"{TRAIN} is what is compared with them" in found("contamination", at=VAL)[0]


def test_a_run_is_refused_with_them() -> None:
    (problem,) = problems({"actor_train.data_args.operators": [entry("length", maxx=3)]})
    assert problem.startswith("actor_train.data_args.operators[0].args.maxx: unknown key")


def test_functions_that_are_not_there_are_named() -> None:
    args = DataArgs.model_validate({"operators": ["json:dumps", "json:nothing", entry("quality", scorer="nowhere:f")]})
    first, second = user_function_problems({"x": args})
    assert first.startswith("x.operators[1]: json:nothing: json has no nothing")
    assert second.startswith("x.operators[2].args.scorer: nowhere:f: importing nowhere failed")
