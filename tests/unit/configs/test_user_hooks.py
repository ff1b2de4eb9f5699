"""What a function that a spec names raises or returns: told with its path, if it is the user's own."""

from pathlib import Path

import pytest

from roll.configs.problems import call_hook, hook_findings
from roll.errors import ConfigError
from tests.helpers.pages import importable

CODE = """
from roll.errors import ConfigError
def number(text): return int(text)
def refuses(text): raise ConfigError("the text is wrong")
def leaves(text): raise SystemExit(text)
def letters(text):
    for letter in text:
        yield letter.upper()
"""


@pytest.fixture(autouse=True)
def hooks(tmp_path: Path):
    (tmp_path / "my_hooks.py").write_text(CODE)
    with importable(tmp_path):
        yield


def test_an_answer_and_findings_come_through() -> None:
    assert call_hook("strategy s", "my_hooks:number", int, "7") == 7
    assert hook_findings("strategy s", "my_hooks:letters", str, "ab") == ["A", "B"]


@pytest.mark.parametrize(
    ("path", "argument", "message"),
    [
        (
            "my_hooks:number",
            "x",
            r"s: my_hooks:number raised ValueError: invalid .* \(my_hooks.py, line 3\)\.$",
        ),
        ("my_hooks:leaves", "x", r"s: my_hooks:leaves raised SystemExit: x \(my_hooks.py, line 5\)\.$"),
        ("my_hooks:letters", "x", "s: my_hooks:letters returned a generator. It must return a int.$"),
        ("my_hooks:refuses", "x", "^the text is wrong$"),
        ("my_hooks:none", "x", "s: my_hooks:none: my_hooks has no none"),
    ],
)
def test_what_it_raises_or_gives_instead_is_told_with_its_path(path: str, argument: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call_hook("s", path, int, argument)


def test_an_exception_while_findings_are_yielded_is_told_as_well() -> None:
    with pytest.raises(ConfigError, match=r"my_hooks:letters raised AttributeError: .* \(my_hooks.py, line 8\)"):
        hook_findings("s", "my_hooks:letters", str, ["a", 2])


def test_a_fault_of_this_package_keeps_its_traceback() -> None:
    with pytest.raises(AttributeError):
        call_hook("s", "roll.configs.problems:nearest", str, None, [])
