"""Output and results against what was expected."""

import math
from typing import Any

import pytest

from roll.rewards.code.cases import same_output, same_value
from roll.rewards.code.local import as_json


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("5\n", "5", True),
        ("5  \n6\t\n", "5\n6", True),
        ("1 2\n", "1  2", True),  # words
        ("1 2", "1 3", False),
        ("1 2 3", "1 2", False),
        ("", "", True),
        ("", "x", False),
        ("0.3333333", "0.333333333333", True),
        ("0.33", "0.333333", False),
        ("3", "3.0", True),
        ("3.0000001", "3", False),  # a whole number was expected
        ("2.0", "2", True),
        ("2e3 1.0", "2000 1", True),
        ("1000000.4", "1000000", False),
        ("1e999999999", "2", False),
        (f"{'9' * 5000}.0", "9" * 5000, True),
        ("1e3", "1000.0", True),
        ("nan", "1.0", False),
        ("inf", "1e400", True),
        ("5\r\n6\r\n", "5\n6\n", True),
        ("1_0.0", "10.0", True),
        ("0x1", "1", False),
        ("true", "1.0", False),
    ],
)
def test_outputs(got: str, expected: str, same: bool) -> None:
    assert same_output(got, expected) is same


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        (1, 1, True),
        (1, "1", False),
        (1, True, False),
        (None, False, False),
        (1.0, 1, True),
        (0.1 + 0.2, 0.3, True),
        (0.0, 5e-7, False),
        (5.000001e-7, 5e-7, True),
        (0.0, 1.2e-16, True),
        (5e-7, 0, True),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (10**400, 1.5, False),
        ([1, 2], (1, 2), True),
        ([1, 2], [2, 1], False),
        ([], None, False),
        ([[1.0], []], [[1], []], True),
        ({1: "a"}, {"1": "a"}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ("[1]", [1], False),
    ],
)
def test_values(got: Any, expected: Any, same: bool) -> None:
    assert same_value(got, expected) is same


def test_a_reply_is_read_as_data_and_nothing_else() -> None:
    assert as_json(["l", 1, ["t", 2, None], ["d", ["k", ["l"]]]]) == [1, [2, None], {"k": []}]
    for message in (["object", 3], ["s", 1], ["fraction", "1e99999999"], [], [["l"], 1], ["d", [["l"], 1]], ["d", 5]):
        with pytest.raises((ValueError, TypeError)):
            as_json(message)
