"""docs/metrics.md lists every metric that the code can report."""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from tests.helpers.pages import metric_entries, unlisted
from tests.layout.source import Module, modules

OWNERS = (
    "rollout", "env", "val", "actor", "critic", "train", "train_infer", "time",
    "goodput", "busy", "throughput", "memory", "mfu", "sync", "agentic",
)  # fmt: skip
NAMES = re.compile(rf"({'|'.join(OWNERS)})/[\w*/]*[a-z]")
OF_USERS = ("roll.rewards", "roll.envs", "roll.pipeline.agentic.e")  # they name what they report as a user would
RENAMED = re.compile("^train_infer_(?=log_prob)")  # inside a loss; the pipeline gives it its owner
OTHERS = frozenset({"time/rollout_s", "time/rollout/reward_s", "rollout/reward"})  # examples in docstrings of code


def test_every_metric_of_the_code_is_on_the_page() -> None:
    listed = metric_entries()
    found = {name for module in modules("roll") for name in reported(module)}
    assert len(found) > 60, "the search itself finds names"
    missing = {name for name in found if not any(matches(name, entry) for entry in listed)}
    assert missing == set(), "add their rows to docs/metrics.md"


def test_a_recorded_name_that_no_entry_describes_is_told() -> None:
    """Every whole run of tests/e2e ends with this look at what it recorded."""
    entries = ["rollout/<name>_mean", "val/<tag>/...", "time/step_s"]
    assert unlisted(["rollout/found_mean", "val/lake/a/b", "time/step_s"], entries) == []
    wrong = ["rollout/found", "rollout/a/b_mean", "val/lake", "time/step_sx"]
    assert unlisted(wrong, entries) == sorted(wrong)


def matches(name: str, entry: str) -> bool:
    """Whether a name of the code, with * for what it fills in, is what an entry of the page describes."""
    wanted = re.sub(r"<\w+>", "*", entry)
    return fnmatchcase(wanted if "/" in name else wanted.rpartition("/")[2], name)


def reported(module: Module) -> Iterator[str]:
    """Names that a module gives to metrics: any text that begins with an owner, and what stands in the places of names,
    as in `metrics.add("x", total, count)`, `.maximum("x", value)`, `metrics["x"] = ` and `metrics = {"x": ...}`."""
    if module.name.startswith(OF_USERS):
        return
    for node in module.nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="add" | "maximum"), args=[name, _, *_]):
                yield from texts(name)
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id="metrics"), slice=name)]):
                yield from texts(name)
            case ast.Assign(targets=[ast.Name(id="metrics")], value=ast.Dict(keys=keys)):
                yield from (text for key in keys if key is not None for text in texts(key))
            case ast.Constant() | ast.JoinedStr():
                yield from (text for text in texts(node) if NAMES.fullmatch(text) and text not in OTHERS)


def texts(node: ast.expr) -> Iterator[str]:
    """A literal text, with * for what an f-string fills in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield RENAMED.sub("train_infer/", node.value)
    elif isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "*" for part in node.values]
        yield RENAMED.sub("train_infer/", "".join(map(str, parts)))
