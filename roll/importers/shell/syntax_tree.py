"""The commands of a shell script as a tree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from roll.importers.shell.quoted_parts import DEEPEST, end_of_brackets, inside
from roll.importers.shell.tokens import WordReader

# What the commands of a shell script are: lists, conditions, loops, functions; words stay as they are written.


@dataclass(frozen=True)
class Simple:
    arguments: tuple[str, ...]
    here_string: str = ""
    """The text that it reads: the word behind `<<<`."""


@dataclass(frozen=True)
class Arithmetic:
    text: str


@dataclass(frozen=True)
class Group:
    body: Steps
    is_apart: bool = False
    """True for one in brackets, which keeps its variables to itself."""


@dataclass(frozen=True)
class IfNode:
    branches: tuple[tuple[Steps, Steps], ...]
    otherwise: Steps = ()


@dataclass(frozen=True)
class ForNode:
    """A loop over words, over arguments (`values` None), or, without a name, by the three sums of `control`."""

    name: str
    values: tuple[str, ...] | None
    body: Steps
    control: str = ""


@dataclass(frozen=True)
class WhileNode:
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


Node = Simple | Arithmetic | Group | IfNode | ForNode | WhileNode | Case | Function
Steps = tuple[tuple[str, Node], ...]
"""Each with what stands before it: `&&`, `||`, `|` or nothing."""


_FUNCTION = re.compile(r"([A-Za-z_][\w.:-]*)[ \t]*\([ \t]*\)")
_MOST_COMMANDS = 10_000


@dataclass
class TreeReader(WordReader):
    depth: int = 0
    count: int = 0

    def script(self) -> Steps:
        """The whole text. Raises Damaged, with the line, for what is never closed."""
        steps: Steps = ()
        while True:
            start = self.at
            steps += self.steps(())
            if self.at >= len(self.text):
                return steps
            self.at = max(self.at, start) + 1  # a bracket that closes nothing

    def steps(self, ends: Sequence[str]) -> Steps:
        """Commands up to one of the words, which is left."""
        nodes: list[tuple[str, Node]] = []
        before, start = "", self.at
        while True:
            self.skip(newlines=True)
            if self.at >= len(self.text):
                if ends:
                    self.damaged(start, f"no {' or '.join(ends)} ends what begins here")
                return tuple(nodes)
            word = self._peek()
            if word in ends:
                return tuple(nodes)
            if word == "" and self.text[self.at] == ")":
                return tuple(nodes)
            node = self._command(word)
            if node is not None:
                nodes.append((before, node))
            before = self._connector()

    def _connector(self) -> str:
        self.skip()
        for sign in ("&&", "||", ";;&", ";&", ";;", "|&", "|", "&", ";"):
            if self.text.startswith(sign, self.at):
                if sign.startswith(";") and len(sign) > 1:
                    return ""  # the end of a choice
                self.at += len(sign)
                return sign if sign in ("&&", "||") else "|" if sign.startswith("|") else ""
        return ""

    def _peek(self) -> str:
        """The next word as it is written, empty before a bracket."""
        if self.text.startswith((";;", ";&"), self.at):
            return ";;"
        held = self.at
        word = self.word()
        self.at = held
        return word

    def _command(self, word: str) -> Node | None:
        if self.depth > DEEPEST:
            self.damaged(self.at, f"blocks within blocks, more than {DEEPEST} deep")
        self.count += 1
        if self.count > _MOST_COMMANDS:
            self.damaged(self.at, f"more than {_MOST_COMMANDS} commands, too many for a script that starts a run")
        self.depth += 1
        try:
            return self._node(word)
        finally:
            self.depth -= 1

    def _node(self, word: str) -> Node | None:
        start = self.at
        if self.text.startswith("((", start):
            end = self.substitution(start, lambda: inside(self.text, start + 2, ")", 0))
            self.at = end + 1 if self.text.startswith(")", end) else end
            return Arithmetic(self.text[start + 2 : end - 1])
        if self.text[start] == "(":
            self.at += 1
            body = self.steps((")",))
            self._close(")", start)
            return Group(body, is_apart=True)
        if word == "{":
            return Group(self._body("{", ("}",), "}"))
        if word == "if":
            return self._if()
        if word in ("for", "select"):
            return self._for()
        if word in ("while", "until"):
            test = self._body(word, ("do",), "")
            return WhileNode(test, self._body("do", ("done",), "done"), word == "until")
        if word == "case":
            return self._case()
        match = _FUNCTION.match(self.text, self.at)
        if word == "function" or match:
            return self._function(match)
        return self._simple()

    def _body(self, opening: str, ends: Sequence[str], closing: str) -> Steps:
        start = self.at
        self.skip(newlines=True)
        if opening and not self.text.startswith(opening, self.at):
            self.damaged(start, f"no {opening} stands where it should")
        self.at += len(opening)
        body = self.steps(ends)
        self.at += len(closing)
        return body

    def _if(self) -> IfNode:
        branches, opening = [], "if"
        while True:
            test = self._body(opening, ("then",), "")
            branches.append((test, self._body("then", ("elif", "else", "fi"), "")))
            opening = self._peek()
            if opening != "elif":
                break
        otherwise = self._body("else", ("fi",), "") if opening == "else" else ()
        self.at += 2
        return IfNode(tuple(branches), otherwise)

    def _for(self) -> ForNode:
        start = self.at
        self.at += len(self._peek())
        self.skip()
        name, control, first = self.word(), "", self.at
        if not name:  # (( ... ; ... ))
            self.at = self.substitution(start, lambda: end_of_brackets(self.text, self.at))
            control = self.text[first + 2 : self.at - 2]
        self.skip(newlines=True)
        words: list[str] | None = None
        if self._peek() == "in":
            self.at += 2
            words = self.tokens()
        self.skip(newlines=True)
        body = self._body("do", ("done",), "done")
        return ForNode(name, None if words is None else tuple(words), body, control)

    def _case(self) -> Case:
        start = self.at
        self.at += 4
        self.skip()
        word = self.word()
        self.skip(newlines=True)
        if self._peek() != "in":
            self.damaged(start, "a case without in")
        self.at += 2
        choices = []
        while True:
            self.skip(newlines=True)
            if self.at >= len(self.text):
                self.damaged(start, "no esac ends what begins here")
            if self._peek() == "esac":
                self.at += 4
                return Case(word, tuple(choices))
            choices.append((self._patterns(start), self._choice()))

    def _choice(self) -> Steps:
        body = self.steps((";;", "esac"))
        while self.text.startswith((";", "&"), self.at):
            self.at += 1
        return body

    def _patterns(self, start: int) -> tuple[str, ...]:
        patterns = []
        self.at += self.text[self.at] == "("
        while self.at < len(self.text) and self.text[self.at] != ")":
            self.skip()
            before = self.at
            patterns.append(self.word())
            self.skip()
            self.at += self.text[self.at : self.at + 1] == "|" or self.at == before
        self._close(")", start)
        return tuple(patterns)

    def _function(self, match: re.Match[str] | None) -> Function | None:
        if match is None:
            self.at += len("function")
            self.skip()
            name = self.word()
            self.skip()
            if self.text.startswith("()", self.at):
                self.at += 2
        else:
            name, self.at = match[1], match.end()
        self.skip(newlines=True)
        if self.at >= len(self.text):
            self.damaged(self.at, f"the function {name} has no body")
        body = self._command(self._peek())
        return None if body is None else Function(name, (("", body),))

    def _simple(self) -> Simple | None:
        words = self.tokens()
        if not words and self.at < len(self.text) and self.text[self.at] in "()":
            self.at += 1
        return Simple(tuple(words), self.here_string) if words else None

    def _close(self, sign: str, start: int) -> None:
        self.skip(newlines=True)
        if self.text[self.at : self.at + 1] != sign:
            self.damaged(start, f"no {sign} ends what begins here")
        self.at += 1
