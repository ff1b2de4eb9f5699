"""Rows of code data, read; what is wrong with one is said with its column."""

import json
from typing import Any

import pytest

from roll.rewards.code.cases import BadCases, CallCase, Cases, StdinCase, problem_of, read_cases


def row(cases: Any, case_type: str | None = None, function: str | None = None) -> dict[str, Any]:
    return {"test_cases": cases, "case_type": case_type, "test_case_function": function}


NAMED = {"func_name": "f"}
DEEPCODER = {"input": '1\n"a"', "output": "[2]", "testtype": "functional", "metadata": NAMED}
STDIN = Cases("stdin", None, stdin=(StdinCase("1\n", "2\n"),))
CALL = Cases("function", "f", calls=(CallCase([1, "a"], [2]),))
OF_APPS = Cases("function", "f", calls=(CallCase([1, "a"], [2], may_be_item=True),))
MIXED = Cases("function", "f", calls=(CallCase([1, "a"], [2]), CallCase([1], 3)))
NOTHING = Cases("function", "f", calls=(CallCase([1], None), CallCase([2], 3)))
A_CALL = {"input": [2], "output": 3}
LONG = Cases("function", "f", calls=(CallCase([1], -7 * (10**9000 - 1) // 9),))
CHECK = Cases("assert", "f", asserts=("def check(candidate): assert candidate(1)",))
ASSERTS = Cases("assert", None, asserts=("assert f(1) == 2",))
FUTURE = "from __future__ import annotations\n"
WITH_FUTURE = Cases("assert", None, asserts=(f"{FUTURE}y = 2\n\nassert f(1) == 2",))
WITH_SETUP = Cases("assert", None, asserts=("import math\ny = 2\nassert f(1) == 2",))


@pytest.mark.parametrize(
    ("columns", "cases"),
    [
        (row([{"stdin": "1\n", "expected_stdout": "2\n"}], "stdin"), STDIN),
        (row(json.dumps([{"stdin": "1\n", "expected_stdout": "2\n"}]), "input"), STDIN),
        (row([{"input": "1\n", "output": "2\n", "testtype": "stdin"}]), STDIN),
        (row({"inputs": ["1\n"], "outputs": ["2\n"]}), STDIN),
        (row({"inputs": [["1", ""]], "outputs": [["2", ""]]}, ""), STDIN),
        (row({"inputs": [[1, "a"]], "outputs": [[2]], "fn_name": "f"}), OF_APPS),
        (row([{"type": "function_call", "fn_name": "f", "input": [1, "a"], "output": [2]}]), OF_APPS),
        (row({"inputs": [[1, "a"], [1]], "outputs": [[2], 3], "fn_name": "f"}), MIXED),
        (row([{"input": '1\n"a"', "output": "[2]", "testtype": "functional"}], "stdin", "f"), CALL),
        (row([{"stdin": '1\n"a"', "expected_stdout": "[2]"}], "input", "f"), CALL),
        (row([DEEPCODER]), CALL),
        (row([{"input": '1\n"a"', "output": "[2]", "testtype": "functional"}]) | {"metadata": NAMED}, CALL),
        (row([{"input": '1\n"a"', "output": "[2]", "testtype": "functional"}]) | {"metadata": json.dumps(NAMED)}, CALL),
        (row([{"input": [1, "a"], "output": [2]}], "function") | {"metadata": NAMED}, CALL),
        (row([{"input": "1\n", "output": "2\n", "testtype": "stdin"}]) | {"metadata": NAMED}, STDIN),
        (row([{"input": "1\n", "output": "2\n"}], "stdin") | {"metadata": NAMED}, STDIN),
        (row([{"input": "1\n", "output": "2\n", "testtype": "stdin"}]) | {"metadata": "{}"}, STDIN),
        (row([{"input": "1\n", "output": "2\n"}]) | {"metadata": "of another kind"}, STDIN),
        (row([{"input": [1, "a"], "output": [2]}], "function", "f"), CALL),
        (row([{"input": [1], "output": None}, A_CALL], "function", "f"), NOTHING),
        (row({"inputs": [[1], [2]], "outputs": [None, 3], "fn_name": "f"}), NOTHING),
        (row([{"input": "1", "output": "null"}, A_CALL], "function", "f"), NOTHING),
        (row([{"input": [1], "output": None}, A_CALL], "function") | {"entry_point": "f"}, NOTHING),
        (row([{"input": [1], "output": None}, A_CALL], "function", "Solution().f"), NOTHING),
        (row(f'[{{"input": [1], "output": -{"7" * 9000}}}]', "function", "f"), LONG),
        (row(["def check(candidate): assert candidate(1)"]) | {"entry_point": "Solution().f"}, CHECK),
        (row(["def check(candidate): assert candidate(1)"], None, "f") | {"entry_point": "g"}, CHECK),
        (row(["assert f(1) == 2"]), ASSERTS),
        (row([{"assert_code": "assert f(1) == 2"}], "pytest", ""), ASSERTS),
        (row("assert f(1) == 2"), ASSERTS),
        (row("def check(candidate): assert candidate(1)", "pytest") | {"entry_point": "f"}, CHECK),
        (row(["assert f(1) == 2"]) | {"test_setup_code": "y = 2", "test_imports": ["import math"]}, WITH_SETUP),
        (row(["assert f(1) == 2"]) | {"test_setup_code": "y = 2", "test_imports": '["import math"]'}, WITH_SETUP),
        (row([f"{FUTURE}assert f(1) == 2"]) | {"test_setup_code": "y = 2"}, WITH_FUTURE),
    ],
)
def test_forms_that_data_sets_have(columns: dict[str, Any], cases: Cases) -> None:
    assert read_cases(columns) == cases
    assert problem_of(columns) is None


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (row("[{", "stdin"), "column 'test_cases' is neither JSON (Expecting property name"),
        (row("5"), "column 'test_cases' holds 5; write a list of cases"),
        (row([]), "column 'test_cases' is an empty list: every program would pass"),
        (row([{"stdin": "1"}], "stdin"), "case 1 of column 'test_cases' has neither expected_stdout nor"),
        (row([{"stdin": "1", "expected_stdout": "1"}, 3], "stdin"), "case 2 of column 'test_cases' is 3, not"),
        (row([{"stdin": 1, "expected_stdout": "1"}], "stdin"), "case 1 of column 'test_cases': input and output"),
        (row({"inputs": ["1"], "outputs": []}), "column 'test_cases' has 1 inputs and 0 outputs"),
        (row([{"input": "x", "output": "1"}], "function", "f"), "case 1 of column 'test_cases': arguments and result"),
        (row([{"input": [1], "output": 1, "testtype": "functional"}]), "column 'test_case_function' is empty"),
        (row(["assert True"], "pytest", "no name"), "column 'test_case_function' holds 'no name'"),
        (row(["assert True"], "chess"), "column 'case_type' holds 'chess'; known are stdin"),
        (row(["assert True"], "stdin"), "column 'case_type' is stdin, but column 'test_cases' holds asserts"),
        (row([{"stdin": "", "expected_stdout": ""}], "pytest"), "column 'case_type' is pytest, but case 1"),
        (row([{"assert_code": " "}], "pytest"), "case 1 of column 'test_cases' has no assert_code"),
        (
            row([{"stdin": "1", "expected_stdout": None}], "stdin"),
            "case 1 of column 'test_cases': expected_",
        ),
        (row([{"input": None, "output": 1}], "function", "f"), "case 1 of column 'test_cases': input is null"),
        (row([{"stdin": "", "expected_stdout": "\n"}] * 2), "column 'test_cases' expects no output anywhere"),
        (row([{"input": [1], "output": None}] * 2, "function", "f"), "column 'test_cases' expects null of every call"),
        (
            row("eJxSMgAAAP//AwAB"),
            "column 'test_cases' is neither JSON (Expecting value: line 1 column 1 (char 0)) nor",
        ),
        (row(["assert f(1)", "# later"]), "case 2 of column 'test_cases' holds no test that runs: write"),
        (row(["def check(candidate): pass"]), "case 1 of column 'test_cases' defines check(candidate), and nothing"),
        (row([{"assert_code": "assert f(1) =="}]), "case 1 of column 'test_cases' is no Python 3"),
        (row(["assert f(1)"]) | {"test_imports": {"math": 1}}, "column 'test_imports' holds neither a text nor a list"),
    ],
)
def test_what_is_wrong_names_the_column(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(BadCases) as caught:
        read_cases(columns)
    assert str(caught.value).startswith(text)
    assert problem_of(columns) == str(caught.value)
    if str(columns.get("test_cases", "")).strip():
        of_truth = {**columns, "test_cases": None, "ground_truth": columns["test_cases"]}
        assert problem_of(of_truth) == str(caught.value).replace("column 'test_cases'", "the ground truth")


def test_the_ground_truth_stands_in_for_cases_that_a_row_does_not_have() -> None:
    truth = '{"inputs": ["1\\n"], "outputs": ["2\\n"]}'
    assert read_cases({"ground_truth": truth}) == read_cases({"test_cases": truth})
    assert read_cases({"test_cases": truth, "ground_truth": "42"}) == read_cases({"test_cases": truth})
