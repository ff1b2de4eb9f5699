"""Docstrings of the library stand alone in a tooltip: each begins with a verb or a noun."""

import ast
from collections.abc import Iterator
from itertools import pairwise

from tests.layout.source import Module, modules, parse

NOT_FIRST = """
    of by where with also beside besides about without after in to for from as on at if when into through out over under
    until before behind between among against along within upon per like than but and or so then now not only still even
    already here there thus hence else otherwise instead across around above below beyond during since because while
    whenever wherever once unless though although together too again always never often sometimes nothing up down off
    frozen wrong
"""
"""Prepositions, adverbs and conjunctions: what follows them is the middle of a sentence."""
RELATIVE = """
    what which that those who whom whose whatever whoever however something it they nobody such anything
"""
"""Pronouns that begin a relative clause or stand for a name: they say nothing without the code below them."""
AFTER_ONE = """
    that which who whose by for in with at as to on
"""
"""Words that make `One` a pronoun; `One row of the table` is a noun."""


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    found = [text for module in modules("roll") for text in begun_midway(module)]
    assert found == [], "Say what it is or returns, such as `Number of rows` or `Return the rows`."


def test_the_first_word_is_found_behind_marks_and_in_any_case() -> None:
    code = 'def a():\n    "Of all ranks."\ndef b():\n    "`at`: its path."\ndef c():\n    "Offers tools."\n'
    code += 'D = 1\n"By name."\n'
    assert sorted(begun_midway(parse(code))) == [
        "example.py:1: Of all ranks.",
        "example.py:3: `at`: its path.",
        "example.py:8: By name.",
    ]


def test_a_relative_clause_is_no_beginning_and_a_noun_is() -> None:
    code = 'def a():\n    "What a run needs."\ndef b():\n    "Those that wait."\ndef c():\n    "One that ends."\n'
    code += 'def d():\n    "One row of the table."\ndef e():\n    "Return the rows."\n'
    assert sorted(begun_midway(parse(code))) == [
        "example.py:1: What a run needs.",
        "example.py:3: Those that wait.",
        "example.py:5: One that ends.",
    ]


def begun_midway(module: Module) -> Iterator[str]:
    for line, text in documented(module):
        first, second = ([word.strip(".,:;`'\"").lower() for word in text.split()[:2]] + ["", ""])[:2]
        if first in NOT_FIRST.split() or first in RELATIVE.split() or (first == "one" and second in AFTER_ONE.split()):
            yield f"{module.relative}:{line}: {text.splitlines()[0]}"


def documented(module: Module) -> Iterator[tuple[int, str]]:
    """(line, text) of the docstrings of modules, classes and functions, and of the texts below fields and constants."""
    for node in module.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "lineno", 1), (ast.get_docstring(node) or "").strip()
        if isinstance(node, ast.Module | ast.ClassDef):
            for above, below in pairwise(node.body):
                match above, below:
                    case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(text))):
                        yield below.lineno, text.strip()
