"""The grammar of device_mapping, against Python's own reading of the same text and against what it must refuse."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.configs.sections.cluster import parse_device_mapping

ids = st.lists(st.integers(0, 64), min_size=1, max_size=6)
ranges = st.tuples(st.integers(0, 20), st.integers(21, 40), st.integers(1, 5))


@st.composite
def terms(draw: st.DrawFn) -> tuple[str, list[int]]:
    """(text, the ids it names) of one term, written in one of the ways users write it."""
    kind = draw(st.sampled_from(["list", "list()", "range2", "range3", "range1"]))
    if kind in ("list", "list()"):
        values = draw(ids)
        text = f"[{', '.join(map(str, values))}]"
        return (f"list({text})" if kind == "list()" else text), values
    start, stop, step = draw(ranges)
    match kind:
        case "range1":
            return f"list(range({stop}))", list(range(stop))
        case "range2":
            return f"list(range({start},{stop}))", list(range(start, stop))
        case _:
            return f"list( range({start}, {stop}, {step}) )", list(range(start, stop, step))


@given(st.lists(terms(), min_size=1, max_size=4))
def test_sums_of_terms_name_the_ids_of_each_term_in_order(parts: list[tuple[str, list[int]]]) -> None:
    text = " + ".join(part[0] for part in parts)
    assert parse_device_mapping(text) == tuple(i for part in parts for i in part[1])


@given(st.text(max_size=40))
def test_any_text_either_names_ids_or_raises_value_error(text: str) -> None:
    try:
        found = parse_device_mapping(text)
    except ValueError:
        return
    assert found and all(type(i) is int and i >= 0 for i in found)
    assert ast.parse(text.strip(), mode="eval")


def test_a_range_may_count_down() -> None:
    assert parse_device_mapping("list(range(3, -1, -1))") == (3, 2, 1, 0)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("__import__('os').system('true')", "is not a list such as"),
        ("[i for i in range(4)]", "is not a list such as"),
        ("range(0, 4) * 2", "is not a list such as"),
        ("list(range(0, x))", "'x' is not a whole number"),
        ("list(range(0, 4.0))", "'4.0' is not a whole number"),
        ("[0, -1]", "-1 is not a device id"),
        ("[True]", "'True' is not a whole number"),
        ("[0, [1]]", "'[1]' is not a whole number"),
        ("list(range(0, 8)", "is not a list such as"),
        ("", "is not a list such as"),
        ("[]", "names no device"),
        ("list(range(4, 4))", "names no device"),
        ("list(range(0, 8, 0))", "a step other than 0"),
        ("list(range(0, 10**9))", "is not a whole number"),
        ("list(range(0, 9999999999))", "names more than 1000000 devices, the limit"),
        ("(" * 5000, "is not a list such as"),
    ],
)
def test_text_outside_the_grammar_is_refused_with_the_reason(text: str, part: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_device_mapping(text)
    assert part in str(error.value)


@pytest.mark.parametrize("value", [3, {"a": 1}, [0, "1"], [1.0], [None], True])
def test_values_that_are_no_ids_are_refused(value: object) -> None:
    with pytest.raises(ValueError):
        parse_device_mapping(value)
