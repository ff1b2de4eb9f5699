"""Nothing that a user, a model or a file supplies is evaluated or unpickled; a library writes no line to stdout."""

import ast
from collections.abc import Iterator

import pytest

from tests.helpers.cases import cases
from tests.layout.source import Module, modules, parse

BANNED = {
    "eval": "evaluates text",
    "exec": "executes text",
    "pickle.load": "runs what the file says",
    "pickle.loads": "runs what the bytes say",
    "pickle.Unpickler": "runs what the file says",
    "cloudpickle.load": "runs what the file says",
    "cloudpickle.loads": "runs what the bytes say",
    "marshal.loads": "runs what the bytes say",
    "yaml.load": "builds any object; use yaml.safe_load",
    "yaml.unsafe_load": "builds any object; use yaml.safe_load",
    "os.system": "starts a shell",
}


def banned_calls(module: Module) -> Iterator[str]:
    for name, call in module.calls:
        where = f"{module.relative}:{call.lineno}"
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        if name in BANNED:
            yield f"{where}: {name} {BANNED[name]}"
        if name == "torch.load" and not is_true(keywords.get("weights_only")):
            yield f"{where}: torch.load without weights_only=True"
        if is_true(keywords.get("shell")) and name.startswith("subprocess."):
            yield f"{where}: {name} with shell=True starts a shell"
        if is_true(keywords.get("trust_remote_code")):
            yield f"{where}: {name} with trust_remote_code=True runs what the model's directory says"


def is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def prints(module: Module) -> Iterator[str]:
    for name, call in module.calls:
        if name == "print":
            yield f"{module.relative}:{call.lineno}: print in the library; use a logger"


def raw_tasks(module: Module) -> Iterator[str]:
    """Tasks that are not contained, and of which nobody may hear when they fail."""
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and node.attr in ("create_task", "ensure_future"):
            yield f"{module.relative}:{node.lineno}: {node.attr}; use start or BackgroundTasks of roll.utils.background"


def test_tasks_are_started_in_one_place() -> None:
    home = "roll.utils.background"
    assert [text for module in modules("roll") if module.name != home for text in raw_tasks(module)] == []


def test_no_banned_call() -> None:
    assert [
        text for module in modules("roll", "examples", "benchmarks", "tools") for text in banned_calls(module)
    ] == []


@cases("text")
def test_banned_call_is_found(text: str) -> None:
    assert len(list(banned_calls(parse(text)))) == 1


@pytest.mark.parametrize(
    "text", ["model.eval()", "import torch\ntorch.load('x', weights_only=True)", "yaml.safe_load(f)"]
)
def test_harmless_call_is_left_alone(text: str) -> None:
    assert list(banned_calls(parse(text))) == []


def test_the_library_does_not_print() -> None:
    allowed = {"roll.commands.run", "roll.commands.table"}
    assert [text for module in modules("roll") if module.name not in allowed for text in prints(module)] == []
