"""Types of an engine's values, read from annotations."""

import math
from typing import Any

import pytest

from roll.configs.strategies.value_kinds import Kinds, kinds_of, misfits


@pytest.mark.parametrize(
    ("annotation", "fitting", "wrong"),
    [
        ("int", [0, -1], [True, 1.5, "1", [], math.inf]),
        ("float | None", [1, 0.5], ["x", True, math.nan, math.inf, {}]),
        ("bool", [True], [1, "true"]),
        ("Optional[str]", ["x"], [1, False, ["x"]]),
        ("List[str]", [[], ["a"]], ["a", 1, {}]),
        ("dict[str, Any]", [{}], [[], "x"]),
        ("Union[int, List[int]]", [1, [1]], ["x", {}]),
        ("A[Literal['a', 'b'], 'help']", ["a"], ["c", 1]),
        ("Literal['a', 3]", ["a", 3], [4, "b"]),
    ],
)
def test_a_value_fits_its_annotation_or_not(annotation: str, fitting: list[Any], wrong: list[Any]) -> None:
    kinds = kinds_of(annotation)
    assert kinds is not None
    assert [value for value in fitting if not kinds.takes(value)] == []
    assert [value for value in wrong if kinds.takes(value)] == []


@pytest.mark.parametrize("annotation", ["CacheDType", "str | torch.dtype", "type[Executor] | None", "'dict | X'"])
def test_a_type_that_only_the_engine_knows_is_not_judged(annotation: str) -> None:
    assert kinds_of(annotation) is None


def test_misfits_are_named_with_their_place_and_null_is_no_value() -> None:
    kinds = {"a": Kinds(frozenset({"int"}), least=1), "b": Kinds(frozenset({"str"}), ("auto",))}
    found = misfits("x", {"a": 0, "b": 1, "c": object(), "d": None} | {"a": 0}, kinds)
    assert [problem.text for problem in found] == [
        "x.a: 0 must be between 1 and 9.22337e+18.",
        "x.b: 1 must be text or one of auto.",
    ]
    assert not list(misfits("x", {"a": None}, kinds))
