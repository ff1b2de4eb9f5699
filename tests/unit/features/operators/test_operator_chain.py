"""Chains of operators and what is checked of them before a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.configs.sections.data import DataArgs
from roll.datasets.chosen_rows import Places
from roll.errors import ConfigError
from roll.features.operators.checks import operator_problems, user_function_problems
from roll.features.operators.row import Chosen, Context, OperatorRow, apply, run_chain
from tests.helpers.cases import cases
from tests.helpers.configs import problems
from tests.helpers.pages import DOCS, importable, snippets, write_files
from tests.unit.features.operators.rows import context, rows

OWN = "tests.unit.features.operators.test_operator_chain"


def own(some: Sequence[OperatorRow], say: Any = None) -> list[Any]:
    return [say] * len(some)


def shout(some: Sequence[OperatorRow]) -> list[Any]:
    return [{"prompt": row.prompt.upper()} if len(row.prompt) > 1 else "short" for row in some]


def renamed(some: Sequence[OperatorRow]) -> list[Any]:
    return [{"id": f"new-{row.id}"} for row in some]


def named(some: Sequence[OperatorRow]) -> list[Any]:
    return [{"seen": row.id} for row in some]


def few(some: Sequence[OperatorRow]) -> list[Any]:
    return [True]


def raises(some: Sequence[OperatorRow]) -> list[Any]:
    raise KeyError("x")


def run(some: Sequence[OperatorRow], *operators: Any) -> Chosen:
    chain = DataArgs.model_validate({"operators": list(operators)}).operators

    def context_of(at: str, op: str) -> Context:
        return Context(at, op, context().count_tokens, context().evaluation)

    return run_chain(some, chain, "x", context_of)


def test_a_blind_policy_sees_the_prompt_of_another_row() -> None:
    some = rows(*({"prompt": str(place), "ground_truth": place} for place in range(20)))
    chosen = run(some, "roll.features.operators.texts:other_prompts")
    changed = [change["prompt"] for _, change in sorted(chosen.changes.items())]
    assert sorted(changed, key=int) == [str(place) for place in range(20)]
    assert all(prompt != str(place) for place, prompt in enumerate(changed))


def test_each_sees_what_the_ones_before_left() -> None:
    some = rows("ab", "AB", "c", "def")
    chosen = run(some, f"{OWN}:shout", "deduplicate", {"name": "length", "args": {"max": 2}})
    assert chosen.rows == (0,) and chosen.changes == {0: {"prompt": "AB"}}
    assert [(step.rows, step.taken, step.why) for step in chosen.steps] == [
        (4, 1, "1 short, 3 changed"),
        (3, 1, "1 the same as an earlier row"),
        (2, 1, "1 more than 2 characters"),
    ]
    assert [row.prompt for row in apply(chosen, some)] == ["AB"]
    assert chosen.lines()[0].split() == ["operator", "rows", "taken", "why"]
    assert chosen.lines()[-1] == "1 of 4 rows remain"


def test_a_chain_names_rows_and_leaves_some() -> None:
    """As the run reads it, and recorded rollouts have it."""
    some = rows("a", "b")
    left = list(apply(run(some, f"{OWN}:renamed", f"{OWN}:named"), some))
    assert [(row.id, row.values["seen"]) for row in left] == [("new-r0", "new-r0"), ("new-r1", "new-r1")]
    expected = r"x.operators\[1\]: length leaves none of 2 rows \(2 more than 1 characters\)"
    with pytest.raises(ConfigError, match=expected):
        run(rows("ab", "cd"), "deduplicate", {"name": "length", "args": {"max": 1}})
    for given in ("deduplicate", ["deduplicate"], [{"name": "deduplicate"}], {"name": "deduplicate", "args": {}}):
        (entry,) = DataArgs.model_validate({"operators": given}).operators
        assert (entry.name, entry.args) == ("deduplicate", {})


@pytest.mark.parametrize(
    "name, args, said",
    [
        ("few", {}, "gave 1 verdicts for 2 rows"),
        ("raises", {}, r"raised KeyError: 'x' \(test_operator_chain.py, line"),
        ("own", {"say": 3}, "gave 3 for f.jsonl:0"),
        ("own", {"say": {"a": float("nan")}}, "its columns for f.jsonl:0 are no JSON values"),
        ("missing", {}, "has no missing"),
    ],
)
def test_an_operator_of_ones_own_that_fails_is_named(name: str, args: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=rf"^x.operators\[0\]: .*{said}"):
        run(rows("a", "b"), {"name": f"{OWN}:{name}", "args": args})


TRAIN, VAL = "actor_train.data_args", "validation.data_args"


def found(*operators: Any, at: str = TRAIN, validation: bool = True, answers: bool = True) -> list[str]:
    places = {TRAIN: {}} | ({VAL: {}} if validation else {})
    args = {key: DataArgs.model_validate({"operators": list(operators)} if key == at else {}) for key in places}
    asked = Places(args, TRAIN, has_responses=answers)
    return [problem.text for problem in operator_problems(asked)]


def entry(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


def test_operators_are_checked_against_the_run() -> None:
    assert found("deduplicate", entry("length", max=3, part="response"), "contamination", "own.module:f") == []
    assert found("deduplicate", "data_juicer:text_length_filter", at=VAL) == []
    (problem,) = found(entry("length", part="response", max=3), answers=False)
    assert "rows of this run have no responses" in problem
    assert "there is no validation.data_args" in found("contamination", validation=False)[0]
    assert f"{TRAIN} is what is compared with them" in found("contamination", at=VAL)[0]
    (problem,) = problems({"actor_train.data_args.operators": [entry("length", maxx=3)]})
    assert problem.startswith("actor_train.data_args.operators[0].args.maxx: unknown key")
    args = DataArgs.model_validate({"operators": ["json:dumps", "json:nothing", "nowhere:f"]})
    first, second = user_function_problems({"x": args})
    assert first.startswith("x.operators[1]: json:nothing: json has no nothing")
    assert second.startswith("x.operators[2]: nowhere:f: importing nowhere failed")


@cases("operator, said")
def test_names_and_arguments_are_checked(operator: Any, said: str) -> None:
    (problem,) = found(operator)
    assert problem.startswith(said), problem


def test_the_yaml_has_no_problems_and_the_function_chooses(tmp_path: Path) -> None:
    page = (DOCS / "data.md").read_text(encoding="utf-8")
    shown = page.split("## Operators\n")[1].split("\n\n`operators`")[0]
    args = DataArgs.model_validate(yaml.safe_load(shown)["actor_train"]["data_args"])
    places = {"actor_train.data_args": args, "validation.data_args": DataArgs()}
    assert list(operator_problems(Places(places, "actor_train.data_args"))) == []
    write_files(snippets("data.md", "python"), tmp_path)
    with importable(tmp_path):
        assert list(user_function_problems(places)) == []
        own = [entry for entry in args.operators if entry.name == "my_operators:no_links"]
        some = rows("see https://a.b", "2+2")
        chosen = run_chain(some, own, "x", lambda at, op: Context(at, op, context().count_tokens, dict))
        assert chosen.rows == (1,) and chosen.steps[0].why == "1 has links"
