"""`${...}`: what they name, and that they lead to an end."""

from typing import Any

import pytest

from roll.configs.load.overrides import check_references, crosses_reference, lookup, references
from roll.errors import ConfigError


def test_the_variables_that_a_tree_uses_are_the_first_parts_of_its_references() -> None:
    assert set(references({"a": "${b.c} ${d}", "e": ["${f[0]}", {"g": "${.h}"}]})) == {"b", "d", "f"}


def test_a_key_crosses_a_reference_where_text_stands_on_its_way() -> None:
    tree = {"a": {"b": "${c}"}}
    assert crosses_reference(tree, "a.b.x") and not crosses_reference(tree, "a.b")


def test_a_lookup_follows_references() -> None:
    assert lookup({"a": "${b}", "b": {"c": 3}}, "a.c", "x") == 3
    with pytest.raises(ConfigError, match=r"x: \$\{b.d\} leads nowhere."):
        lookup({"b": {"c": 3}}, "b.d", "x")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": "${a}"}, r"a: \$\{a\} refers to itself."),
        ({"a": "${b}", "b": {"c": "x ${a}"}}, r"a: \$\{b\} refers to itself."),
        ({"a": {"b": "${..a}"}}, r"a.b: \$\{..a\} refers to itself."),
        ({"a": ["${a[0]}"]}, r"a.0: \$\{a\[0\]\} refers to itself."),
    ],
)
def test_references_without_an_end_are_refused(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_references(tree)


def test_references_to_neighbours_and_to_parts_are_fine() -> None:
    check_references({"a": {"b": "${a.c}", "c": 1, "d": "${.c}", "e": r"\${a}"}, "f": "${a}", "g": ["${f}", "${a.b}"]})
