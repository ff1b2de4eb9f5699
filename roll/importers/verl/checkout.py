"""A checkout of verl or of a fork around a script: where its code reads a key, and what scores its answers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from roll.importers.rows import data
from roll.importers.verl.reward_sources import is_known_source
from roll.utils.files import path_info

_HIGHEST, _MOST_FILES, _MOST_BYTES = 8, 4000, 1 << 20
_BESIDE = ("tests", "examples", "docs", "scripts", "build")
_MANAGERS = Path("verl/workers/reward_manager")
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_WHOLE = re.compile(r"\bcat\(\(valid_prompt_ids, *valid_response_ids")
_COUNTER = re.compile(r"\w*(count|step|index|idx|num)\w* [+-] 1|[ij] \+ 1")
_ALGORITHMS = Path("verl/trainer/ppo/core_algos.py")
_VANILLA = "register_policy_loss('vanilla')"
_SCORES = Path("verl/utils/reward_score/__init__.py")
_SCORE_FUNCTIONS = ("default_compute_score", "_default_compute_score")
_CHOICES = ("_select_rm_score_fn", *_SCORE_FUNCTIONS)
_TRAINER = re.compile(r"from verl\.trainer\.ppo\.ray_trainer import (\(|.*\bRayPPOTrainer\b)")


@dataclass(frozen=True)
class Checkout:
    """`root`: the folder from which `-m` finds the program; `program`: its file."""

    root: Path
    program: Path

    @property
    def is_whole(self) -> bool:
        """Whether the trainer itself is there."""
        return path_info(self.root / _ALGORITHMS).is_file

    def place_of(self, key: str) -> str | None:
        """Return the file and line that read a key, by its last names; empty where no file names it, None where the
        trainer is not there."""
        if not self.is_whole:
            return None
        *_, section, name = ["", *key.split(".")]
        named = rf"""(?:\.|["'])\b{re.escape(name)}\b"""
        for form in (rf"\b{re.escape(section)}\b\W+(?:get\(\W*)?{re.escape(name)}\b", named):
            for path, text in _texts(self.root):
                if found := re.search(form, text):
                    return f"{path}:{text.count(chr(10), 0, found.start()) + 1}"
        return ""

    @property
    def is_verls(self) -> bool:
        """Whether the program starts verl's own trainer, whatever it is called."""
        return _TRAINER.search(_text(self.program)) is not None

    @property
    def has_kl_in_reward(self) -> bool:
        """Whether any trainer takes a KL off the rewards, as verl's does."""
        return not self.is_whole or any(
            re.search(r"(?m)^(?!\s*def\b)[^#\n]*\bapply_kl_penalty\(", text) for _, text in _texts(self.root)
        )

    @property
    def has_dual_clip(self) -> bool:
        """Whether the loss that verl calls vanilla, or a function that it calls, multiplies by clip_ratio_c."""
        nodes = ast.walk(_tree(self.root / _ALGORITHMS))
        functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
        first = (each for each in functions.values() if _VANILLA in map(ast.unparse, each.decorator_list))
        loss = next(first, functions.get("compute_policy_loss"))
        used = [loss] if loss else []
        used += [functions[name] for each in used for name in map(_name, ast.walk(each)) if name in functions]
        return not used or any(map(_is_bounded, (node for each in used for node in ast.walk(each))))

    def managers(self, name: str) -> list[Path]:
        """Return where versions of verl have the class around rewards of this name: the first had it in the program."""
        return [self.program, self.root / _MANAGERS.with_suffix(".py"), self.root / _MANAGERS / f"{name}.py"]

    def text_of(self, name: str) -> str:
        """Return the code of the class around rewards."""
        return "\n".join(map(_text, self.managers(name)))

    def scores_in_program(self, name: str) -> bool:
        """Whether the program, or its class around rewards, chooses the reward of a row otherwise than verl's."""
        return any(map(_is_own_choice, self.managers(name)))

    def computes_rewards(self, name: str) -> str:
        """Return what the class around rewards computes beside verl's, with its place; empty where it is verl's."""
        for path in self.managers(name):
            classes = (node for node in ast.walk(_tree(path)) if isinstance(node, ast.ClassDef))
            for node in (node for each in classes if "Manager" in each.name for node in _behind_rewards(each)):
                if _is_sum(node) and (text := ast.unparse(node)) not in data("verl/managers.yaml"):
                    return f"{path.relative_to(self.root)}:{getattr(node, 'lineno', 1)}: {text}"
        return ""

    def reads_turns(self, name: str) -> bool:
        """Whether rewards get prompt and answer as one text, and look for the turn of the assistant in it."""
        texts = map(_text, [self.program, *(self.root / _SCORES).parent.rglob("*.py")])
        return _WHOLE.search(self.text_of(name)) is not None and any("ssistant" in text for text in texts)

    def is_switch(self, key: str) -> bool:
        """Whether a key does nothing but turn parts of the code on: each line that names it is an `if` of it alone."""
        name = re.escape(key.rpartition(".")[2])
        named, alone = rf"(?:\.|[\"']){name}\b", rf"(?:\.{name}|\.get\([\"']{name}[\"'](?:, *(?:False|None))?\))"
        lines = [line for _, text in _texts(self.root) for line in text.split("\n") if re.search(named, line)]
        return bool(lines) and all(re.fullmatch(rf"\s*(?:el)?if [\w.]+{alone}(?: and .*)?:\s*", line) for line in lines)

    @property
    def reward(self) -> dict[str, Any]:
        """Return the arguments of verl_function for a fork's own choice by source; none where it is verl's."""
        path = self.root / _SCORES
        if not _is_own_choice(path):
            return {}
        name = next((name for name in _SCORE_FUNCTIONS if f"def {name}(" in _text(path)), "")
        return {"path": str(path), "name": name} if name else {}


def checkout_of(module: str, script: Path) -> Checkout | None:
    """Return the checkout around a script, or below the top of its repository, that has the program; it is read, and
    never run."""
    at = Path(*module.split(".")[:-1], f"{module.rpartition('.')[2]}.py")
    around = [*script.resolve().parents][:_HIGHEST]
    tops = [folder for folder in around if (folder / ".git").exists()][:1] if "." in module else []
    below = (
        file.parents[len(at.parts) - 1] for top in tops for deep in ("*", "*/*") for file in top.glob(f"{deep}/{at}")
    )
    root = next((folder for folder in (*around, *below) if module and path_info(folder / at).is_file), None)
    return None if root is None else Checkout(root, root / at)


@cache
def _texts(root: Path) -> tuple[tuple[str, str], ...]:
    """Return the texts of a checkout's packages by their paths below it; folders of data are not walked through."""
    packages = [path.parent for path in sorted(root.glob("*/__init__.py")) if path.parent.name not in _BESIDE]
    files = [path.relative_to(root) for package in packages for path in sorted(package.rglob("*.py"))]
    shown = [path for path in files if not any(part.startswith(".") for part in path.parts)]
    return tuple((str(path), _text(root / path)) for path in shown[:_MOST_FILES])


def _text(path: Path) -> str:
    if not path_info(path).is_file or path.stat().st_size > _MOST_BYTES:
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def _tree(path: Path) -> ast.Module:
    """Return a file as Python reads it; empty where it cannot."""
    try:
        return ast.parse(_text(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _behind_rewards(manager: ast.ClassDef) -> Iterator[ast.AST]:
    """Yield the code from which a class makes the numbers in its tensor of rewards."""
    parts = list(ast.walk(manager))
    sets = [node for node in parts if isinstance(node, ast.Assign | ast.AugAssign)]
    made = {id(node): node.targets if isinstance(node, ast.Assign) else [node.target] for node in sets}
    todo: list[ast.AST] = [
        node.value
        for node in sets
        if any(
            isinstance(each, ast.Subscript) and "reward_tensor" in ast.unparse(each.value) for each in made[id(node)]
        )
    ]
    names = set[str]()
    while todo:
        inner = list(ast.walk(todo.pop()))
        yield from inner
        new = {_name(node) or getattr(node, "attr", "") for node in inner} - names - {""}
        names |= new
        todo += [node for node in sets if any(_name(part) in new for each in made[id(node)] for part in ast.walk(each))]
        todo += [node for node in parts if isinstance(node, ast.FunctionDef) and node.name in new]


def _is_sum(node: ast.AST) -> bool:
    """Whether this computes with numbers, and does more than count."""
    if not (isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, _ARITHMETIC)):
        return False
    if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant):
        return False
    is_text = any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(node))
    return not is_text and not _COUNTER.fullmatch(ast.unparse(node))


def _is_bounded(node: ast.AST) -> bool:
    """Whether this is a product with clip_ratio_c."""
    factors = [node.left, node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) else []
    return any(ast.unparse(factor).endswith("clip_ratio_c") for factor in factors)


def _is_own_choice(path: Path) -> bool:
    """Whether a file has a reward for sources that verl itself refuses, or names one for all of them."""
    tree = _tree(path)
    choices = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in _CHOICES]
    sets = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute)]
    is_set = any("compute_score" in map(_name, node.targets) for node in sets)
    return is_set or any(map(_takes_others, choices)) or not all(map(is_known_source, _sources(tree)))


def _takes_others(choice: ast.FunctionDef) -> bool:
    """Whether the last branch of a choice by source returns a reward instead of raising, or nothing is chosen. An old
    name that calls another choice decides nothing itself."""
    called = {ast.unparse(node.func) for node in ast.walk(choice) if isinstance(node, ast.Call)}
    if called & {*_SCORE_FUNCTIONS} - {choice.name}:
        return False
    if not any(
        isinstance(node, ast.If) and "data_source" in map(_name, ast.walk(node.test)) for node in ast.walk(choice)
    ):
        return True
    chain = next((node for node in choice.body if isinstance(node, ast.If)), None)
    last: list[ast.stmt] = [chain] if chain else []
    while last and isinstance(last[-1], ast.If):
        last = last[-1].orelse
    return bool(last) and not isinstance(last[-1], ast.Raise)


def _sources(tree: ast.Module) -> Iterator[str]:
    """Yield the values with which a file compares data_source, those of its tables among them."""
    tables = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    for node in ast.walk(tree):
        is_start = isinstance(node, ast.Call) and ast.unparse(node.func) == "data_source.startswith"
        if is_start or (isinstance(node, ast.Compare) and "data_source" in map(_name, ast.walk(node))):
            named = [tables[name] for name in map(_name, ast.walk(node)) if name in tables]
            keys = (key for table in named for key in getattr(table, "keys", [table]) if key is not None)
            yield from (
                each.value
                for part in (node, *keys)
                for each in ast.walk(part)
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""
