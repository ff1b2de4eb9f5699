"""Operators in turn: what each takes, changes, and may not do."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from roll.configs.sections.data import DataArgs
from roll.errors import ConfigError
from roll.features.operators.row import Chosen, Context, OperatorRow, apply, as_json, from_json, run_chain
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


def test_an_id_that_an_operator_gives_is_the_rows() -> None:
    """As the run reads it, and recorded rollouts have it."""
    some = rows("a", "b")
    left = list(apply(run(some, f"{OWN}:renamed", f"{OWN}:named"), some))
    assert [(row.id, row.values["seen"]) for row in left] == [("new-r0", "new-r0"), ("new-r1", "new-r1")]


def test_a_choice_survives_json() -> None:
    chosen = run(rows("ab", "c"), f"{OWN}:shout")
    assert from_json(json.loads(json.dumps(as_json(chosen)))) == chosen


def test_what_leaves_nothing_is_refused() -> None:
    expected = r"x.operators\[1\]: length leaves none of 2 rows \(2 more than 1 characters\)"
    with pytest.raises(ConfigError, match=expected):
        run(rows("ab", "cd"), "deduplicate", {"name": "length", "args": {"max": 1}})


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


@pytest.mark.parametrize("verdict", [True, None])
def test_true_and_none_stay(verdict: object) -> None:
    assert run(rows("a", "b"), {"name": f"{OWN}:own", "args": {"say": verdict}}).rows == (0, 1)


def test_a_name_alone_is_an_operator_without_arguments() -> None:
    for given in ("deduplicate", ["deduplicate"], [{"name": "deduplicate"}], {"name": "deduplicate", "args": {}}):
        (entry,) = DataArgs.model_validate({"operators": given}).operators
        assert (entry.name, entry.args) == ("deduplicate", {})
