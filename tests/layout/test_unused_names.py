"""What nothing uses is not there: every function, class and constant of the library is named a second time."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

from tests.layout.source import REPOSITORY, Module, modules, parse

USERS = ("roll", "docs", "examples", "benchmarks", "tools")  # a test alone is no use
KINDS = (".py", ".md", ".yaml")
OF_PYTHON = ("__getattr__", "__dir__", "__all__")  # a module's own, which Python uses


def defined(module: Module) -> Iterator[str]:
    """The names that a module gives to its functions, classes and constants."""
    for node in module.tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def test_every_name_of_the_library_is_used() -> None:
    words: Counter[str] = Counter()
    for folder in USERS:
        for path in (REPOSITORY / folder).rglob("*"):
            if path.suffix in KINDS:
                words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    found = [(module.relative, name) for module in modules("roll") for name in defined(module) if name not in OF_PYTHON]
    assert len(found) > 1000, "the search itself finds names"
    assert [(path, name) for path, name in found if words[name] < 2] == []


def test_names_of_every_form_are_found() -> None:
    text = "def a(): pass\nasync def b(): pass\nclass C:\n    inner = 1\nD = E = 1\nF: int = 2\nd['x'] = 3"
    assert [*defined(parse(text))] == ["a", "b", "C", "D", "E", "F"]
