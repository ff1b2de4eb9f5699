"""What the commands of a shell script are: lists, conditions, loops, functions; words stay as they are written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Simple:
    words: tuple[str, ...]


@dataclass(frozen=True)
class Arithmetic:
    text: str


@dataclass(frozen=True)
class Group:
    body: Steps
    is_apart: bool = False
    """True for one in brackets, which keeps its variables to itself."""


@dataclass(frozen=True)
class If:
    branches: tuple[tuple[Steps, Steps], ...]
    otherwise: Steps = ()


@dataclass(frozen=True)
class For:
    name: str
    words: tuple[str, ...] | None
    body: Steps


@dataclass(frozen=True)
class While:
    test: Steps
    body: Steps
    is_until: bool


@dataclass(frozen=True)
class Case:
    word: str
    choices: tuple[tuple[tuple[str, ...], Steps], ...]


@dataclass(frozen=True)
class Function:
    name: str
    body: Steps


Node = Simple | Arithmetic | Group | If | For | While | Case | Function
Steps = tuple[tuple[str, Node], ...]
"""Each with what stands before it: `&&`, `||`, `|` or nothing."""
