"""The commands that a shell script would run, found without running any."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from roll.importers.shell.arithmetic import whole_number
from roll.importers.shell.conditions import all_of, any_of, negated, verdict
from roll.importers.shell.quoted_parts import DEEPEST, Damaged
from roll.importers.shell.state import State, opened
from roll.importers.shell.syntax_tree import (
    Arithmetic,
    Case,
    ForNode,
    Function,
    Group,
    IfNode,
    Node,
    Simple,
    Steps,
    TreeReader,
    WhileNode,
)
from roll.importers.shell.values import divided, text_of, words_of

# The variables that a script sets, as far as the script alone decides them.

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
_OF_TABLE = re.compile(r"\[(.*?)\]=(.*)", re.DOTALL)
_DECIDES = "stands in an if or a loop and is not followed"


@dataclass
class Variables:
    """Sets variables of a state. `undecided`: tests around that nothing here decides; `local`: names that the function
    declares for itself."""

    state: State
    undecided: int = 0
    local: set[str] = field(default_factory=set)

    def declare(self, words: tuple[str, ...]) -> None:
        exports = words[0] == "export" or any(re.fullmatch(r"-\w*x\w*", word) for word in words[1:])
        is_table = any(re.fullmatch(r"-\w*A\w*", word) for word in words[1:])
        for word in words[1:]:
            if is_table and (name := _NAME.match(word)):
                self.state.tables.setdefault(name[0], {})
            if exports and (name := _NAME.match(word)):
                self.state.exported.add(name[0])
            if ASSIGNMENT.fullmatch(word):
                self.assign(word, is_local=words[0] in ("local", "declare", "typeset"))
            elif "$" in word and (made := ASSIGNMENT.fullmatch(text_of(word, self.state))):  # "$name=$value"
                self.write(made[1], made[4], is_known=True)

    def assign(self, word: str, is_local: bool = False) -> None:
        match = ASSIGNMENT.fullmatch(word)
        assert match is not None
        name, index, adds, value = match.groups()
        if is_local and self.state.arguments is not None:
            self.local.add(name)
        if self.undecided:
            self.write(name, value, is_known=False)
            if index and name in self.state.tables:
                self.state.tables[name].setdefault(text_of(index[1:-1], self.state), opened(name))
        elif name in self.state.tables:
            self._of_table(name, index, adds == "+", value)
        elif index is not None:
            self._entry(name, index[1:-1], text_of(value, self.state))
        elif value.startswith("(") and value.endswith(")"):
            array = _entries(value[1:-1], self.state)
            self.state.assign_array(name, [*self.state.entries(name), *array] if adds else array)
        elif adds and name in self.state.arrays:
            first, *others = self.state.arrays[name] or [""]
            self.state.assign_array(name, [first + text_of(value, self.state), *others])
        else:
            text = text_of(value, self.state)
            self.state.assign(name, (self.state.known(name) or "") + text if adds else text)

    def _of_table(self, name: str, index: str | None, adds: bool, value: str) -> None:
        """Set an entry of an array by names, or all: `P[a]=1`, `P=([a]=1 [b]=2)`."""
        held = self.state.tables[name]
        if index is not None:
            key = text_of(index[1:-1], self.state)
            held[key] = (held.get(key, "") if adds else "") + text_of(value, self.state)
        elif value.startswith("(") and value.endswith(")"):
            entries = filter(None, map(_OF_TABLE.fullmatch, _written(value[1:-1])))
            made = {text_of(each[1], self.state): text_of(each[2], self.state) for each in entries}
            self.state.tables[name] = {**held, **made} if adds else made
        self.state.spend(len(value))

    def _entry(self, name: str, index: str, value: str) -> None:
        place = whole_number(index, self.state.variables)
        values = list(self.state.entries(name))
        if place is not None and 0 <= place <= len(values):
            self.state.assign_array(name, [*values[:place], value, *values[place + 1 :]])

    def write(self, name: str, value: str, is_known: bool) -> None:
        """Sets a variable; one of which nothing tells the value is left as it was, or open."""
        if is_known and not self.undecided:
            self.state.assign(name, value)
            return
        self.state.note(f"{name}={value} {_DECIDES}.")
        self.state.leave_open(name)


def _entries(inside: str, state: State) -> list[str]:
    """Words of an array, one after the other."""
    return [word for written in _written(inside) for word in _spent(words_of(written, state), state)]


def _spent(words: list[str], state: State) -> list[str]:
    state.spend(0)
    return words


def _written(inside: str) -> Iterator[str]:
    """Yield the words of an array as they stand in the script."""
    reader = TreeReader(inside)
    while True:
        reader.skip(newlines=True)
        if reader.at >= len(inside):
            return
        written = reader.word()
        reader.at += not written
        if written:
            yield written


_DECLARING = ("export", "local", "declare", "readonly", "typeset")
_CHANGE = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:(\+\+|--)|([-+*/%]?)=(?!=)(.*))\s*", re.DOTALL)
_RUNS_TEXT = ("bash", "sh", "zsh")
_MOST_COMMANDS = 200
_MOST_TIMES = 100  # of a loop that counts

_OF_LOOPS = ("break", "continue")

Verdict = bool | None | str
Branches = tuple[tuple[Node, int], ...]
"""Tests that nothing here decides, the outermost first, each with the number of the branch behind it.
For other conditions the node is one that stands nowhere."""
DONE = "done"
"""The verdict of a program: it is taken to do its work, and no test depends on it."""


class _Ends(Exception):
    """The script, one of its functions, a loop or a round of it."""

    def __init__(self, what: str):
        super().__init__(what)
        self.what = what


@dataclass
class Walk:
    """`heeds_exit`: whether the script ends at an `exit` that its tests reach; `taken`: branches to take where nothing
    here decides them; `places`: where each of the commands stands, by its node and the branches around it;
    `environments`: the variables that the script gives each of them; `open_branches`: tests that nothing decided, with
    their branches."""

    state: State = field(default_factory=State)
    heeds_exit: bool = True
    taken: Branches = ()
    commands: list[list[str]] = field(default_factory=list)
    places: list[tuple[Node, Branches]] = field(default_factory=list)
    environments: list[dict[str, str]] = field(default_factory=list)
    open_branches: dict[tuple[int, int], Branches] = field(default_factory=dict)
    depth: int = 0

    def __post_init__(self) -> None:
        self._variables = Variables(self.state)
        self._around: Branches = ()
        self._at: Node = Group(())
        self._may_break, self._here_string = False, ""
        self._before: dict[str, str] = {}  # variables that stand before the command that runs

    def script(self, steps: Steps) -> None:
        with suppress(_Ends):
            self._walk(steps)

    def _walk(self, steps: Steps) -> Verdict:
        if self.depth > DEEPEST:
            raise Damaged(f"functions within functions, more than {DEEPEST} deep")
        self.depth += 1
        try:
            before: Verdict = True
            test: Node = Group(())
            for sign, node in steps:
                before, test = self._joined(sign, before, test, node)
            return before
        finally:
            self.depth -= 1

    def _joined(self, sign: str, before: Verdict, test: Node, node: Node) -> tuple[Verdict, Node]:
        """Run a part of a list, and return the verdict so far with the test that it hangs on, if nothing decides it.

        Example: behind `[ -f x ]`, a program behind && is in its first branch, and one behind || in its second.
        """
        if sign not in ("&&", "||"):
            return self._node(node), node
        wanted = sign == "&&"
        decided = True if before == DONE else before
        if decided is None:
            decided = next((not number for other, number in self.taken if other is test), None)
            before = None
        if decided is (not wanted):
            return before, test
        if decided is None:
            self._leaves_open(test, int(not wanted))
        after = self._perhaps(node, test, int(not wanted)) if decided is None else self._node(node)
        if before is not None:
            return after, node
        if after == DONE:  # behind || one of both has done its work
            return (None if wanted else DONE), test
        assert not isinstance(after, str)
        return (all_of if wanted else any_of)(None, after), node

    def _perhaps(self, node: Node, test: Node | None = None, number: int = 0) -> Verdict:
        """Run a part that depends on a condition which cannot be decided here. `number`: of the branch of a test."""
        held, self._around = self._around, (*self._around, (test or Group(()), number))
        self._variables.undecided += 1
        try:
            return self._node(node)
        finally:
            self._variables.undecided -= 1
            self._around = held

    def _node(self, node: Node) -> Verdict:
        self.state.step()
        match node:
            case Simple(words, here_string):
                self._at, self._here_string = node, here_string
                return self._simple(words)
            case Arithmetic(text):
                return self._arithmetic(text)
            case Group(body, is_apart):
                return self._apart(body) if is_apart else self._walk(body)
            case IfNode():
                return self._if(node)
            case Case():
                return self._case(node)
            case ForNode():
                return self._for(node)
            case WhileNode():
                return self._while(node)
            case Function(name, body):
                self.state.functions[name] = body
        return DONE

    def _apart(self, body: Steps) -> Verdict:
        tables = {name: dict(entries) for name, entries in self.state.tables.items()}
        held = dict(self.state.variables), dict(self.state.arrays), tables
        self.state.spend(len(held[0]) + len(held[1]) + sum(map(len, tables.values())))
        try:
            return self._walk(body)
        except _Ends:
            return None
        finally:
            self.state.variables, self.state.arrays, self.state.tables = held

    def _branches(self, node: Node, bodies: Sequence[Steps]) -> Verdict:
        """Go through branches of which nothing decides one, or through the one that is to be taken."""
        for number, body in enumerate(bodies):
            if any(test is node and number == chosen for test, chosen in self.taken):
                return self._walk(body)
        for number, body in enumerate(bodies):
            self._leaves_open(node, number)
            self._perhaps(Group(body), node, number)
        return None

    def _leaves_open(self, test: Node, number: int) -> None:
        self.open_branches[id(test), number] = (*self._around, (test, number))

    def _if(self, node: IfNode) -> Verdict:
        for i, (test, body) in enumerate(node.branches):
            outcome = self._walk(test)
            if outcome is True:
                return self._walk(body)
            if outcome is not False:
                return self._branches(node, [*(other for _, other in node.branches[i:]), node.otherwise])
        return self._walk(node.otherwise)

    def _case(self, node: Case) -> Verdict:
        value = text_of(node.word, self.state)
        is_open = "$" in value or len(value) > 4096
        perhaps: list[Steps] = []
        for patterns, body in node.choices:
            texts = [text_of(pattern, self.state) for pattern in patterns]
            if is_open or any("$" in text for text in texts):
                perhaps.append(body)
            elif any(fnmatch.fnmatchcase(value, text) for text in texts):
                return self._branches(node, [*perhaps, body]) if perhaps else self._walk(body)
        return self._branches(node, perhaps)

    def _counts(self, node: ForNode) -> Verdict:
        """Run a loop such as `for ((i = 0; i < 3; i++))`, once if nothing here says how often."""
        first, test, step = (part.strip() for part in [*node.control.split(";"), "", ""][:3])
        if first:
            self._arithmetic(first)
        if self._repeats(node.body, lambda: self._arithmetic(test) if test else None, lambda: self._arithmetic(step)):
            return DONE
        for change in filter(None, map(_CHANGE.fullmatch, (first, step))):
            self.state.assign(change[1], opened(change[1]))
        self._perhaps(Group(node.body))
        return DONE

    def _repeats(self, body: Steps, goes_on: Callable[[], Verdict], step: Callable[[], object]) -> bool:
        """Run the body of a loop as often as its test holds; False where nothing here tells how often that is."""
        for _ in range(_MOST_TIMES):
            verdict = goes_on()
            if verdict is False:
                return True
            if verdict is not True or self._variables.undecided:
                return False
            held, self._may_break = self._may_break, False
            is_left = self._leaves_loop(body)
            may_break, self._may_break = self._may_break, held
            if is_left:
                return True
            if may_break:
                return False
            step()
        return False

    def _leaves_loop(self, body: Steps) -> bool:
        """Run the body of a loop once, and tell whether it ends with a `break`."""
        try:
            self._walk(body)
        except _Ends as end:
            if end.what not in _OF_LOOPS:
                raise
            return end.what == "break"
        return False

    def _for(self, node: ForNode) -> Verdict:
        if not node.name:
            return self._counts(node)
        words = self.state.entries("@") if node.values is None else self._expanded(node.values)
        if not words or any("$" in word for word in words) or self._variables.undecided:
            self.state.leave_open(node.name)
            if node.values is None or words:
                self._perhaps(Group(node.body))
            return DONE
        for word in words:
            self.state.assign(node.name, word)
            if self._leaves_loop(node.body):
                break
        return DONE

    def _while(self, node: WhileNode) -> Verdict:
        def goes_on() -> Verdict:
            outcome = self._walk(node.test)
            return (outcome is not node.is_until) if isinstance(outcome, bool) else None

        if not self._repeats(node.body, goes_on, lambda: None):
            self._perhaps(Group(node.body))
        return DONE

    def _arithmetic(self, text: str) -> Verdict:
        change = _CHANGE.fullmatch(text)
        if change is None:
            value = whole_number(text, self.state.variables)
            return None if value is None else bool(value)
        name, step, sign, sum = change[1], change[2], change[3], change[4]
        first = f"{name} {step[0]} 1" if step else f"{name} {sign} ({sum})" if sign else sum
        value = whole_number(first, self.state.variables)
        self._variables.write(name, "" if value is None else str(value), is_known=value is not None)
        return DONE

    def _simple(self, words: tuple[str, ...]) -> Verdict:
        start = 0
        while start < len(words) and ASSIGNMENT.fullmatch(words[start]):
            start += 1
        if start == len(words):
            for word in words:
                self._variables.assign(word)
            return DONE
        held, self._before = self._before, {**self._before, **dict(self._set(word) for word in words[:start])}
        try:
            return self._run(words[start:])
        finally:
            self._before = held

    def _set(self, word: str) -> tuple[str, str]:
        """Return a variable and its value, which stand before a command. Example: `A=1 python x.py`."""
        match = ASSIGNMENT.fullmatch(word)
        assert match is not None
        return match[1], text_of(match[4], self.state)

    def _run(self, words: tuple[str, ...]) -> Verdict:
        if words[0] == "!":
            after = self._run(words[1:]) if words[1:] else DONE
            assert after is None or isinstance(after, bool | str)
            return DONE if isinstance(after, str) else negated(after)
        if words[0] in ("[", "[[", "test"):
            return verdict(words, self.state)
        if words[0] in _DECLARING:
            self._variables.declare(words)
            return DONE
        return self._program(self._expanded(words))

    def _expanded(self, words: Sequence[str]) -> list[str]:
        self.state.spend(0, len(words))
        return [made for word in words for made in words_of(word, self.state)]

    def _program(self, words: list[str]) -> Verdict:
        name = words[0] if words else ":"
        if name in (":", "true", "false"):
            return name != "false"
        if name == "exit" and not self.heeds_exit:
            return DONE
        if name in (*_OF_LOOPS, "exit", "return") and not self._variables.undecided:
            raise _Ends(name)
        if name == "break":
            self._may_break = True
            return DONE
        if name in self.state.functions and self.depth <= DEEPEST:
            return self._call(name, words[1:])
        if name == "eval":
            return self._text(" ".join(words[1:]))
        if name in ("source", "."):
            self.state.note(f"{' '.join(words)} is not followed.")
        elif name == "let":
            for text in words[1:]:
                self._arithmetic(text)
        elif name in ("read", "mapfile", "readarray", "getopts"):
            self._reads(name, words[1:])
        elif name == "printf" and words[1:2] == ["-v"] and words[2:]:
            self.state.leave_open(words[2])
        elif name in ("set", "shift", "unset"):
            self._of_shell(name, words[1:])
        elif len(self.commands) < _MOST_COMMANDS * (1 + any("=" in word for word in words)):
            text = _script_in(words)
            self.commands.append(words)
            self.places.append((self._at, self._around))
            self.environments.append({**self.state.environment(), **self._before})
            if text is not None:
                self._text(text)
        return DONE

    def _reads(self, name: str, words: list[str]) -> None:
        """Set variables to what stands behind `<<<`, or leave them open.

        Example: `IFS=',' read -ra A <<< "0,1"` makes A an array of 0 and 1.
        """
        names = [word for word in words if word.isidentifier()]
        text = text_of(self._here_string, self.state) if self._here_string else "$"
        options = "".join(word[1:] for word in words if word.startswith("-"))
        is_whole = name == "read" and set(options) <= {"r", "a"}
        is_lines = name in ("mapfile", "readarray") and options == "t"
        if not names or "$" in text or "`" in text or self._variables.undecided or not (is_whole or is_lines):
            for each in names:
                self.state.assign(each, opened(each))
            return
        signs = self._before.get("IFS", self.state.separators)
        parts = text.split("\n") if is_lines else divided(text.split("\n")[0], signs)
        if is_lines or "a" in options:
            self.state.assign_array(names[0], parts)
            return
        for i, each in enumerate(names):
            last = i == len(names) - 1
            sign = signs[:1] or " "
            self.state.assign(each, sign.join(parts[i:]) if last else next(iter(parts[i : i + 1]), ""))

    def _of_shell(self, name: str, words: list[str]) -> None:
        if name == "unset":
            for each in words:
                self.state.variables.pop(each, None)
                self.state.arrays.pop(each, None)
                self.state.tables.pop(each, None)
        elif name == "shift" and self.state.arguments is not None:
            self.state.arguments = self.state.arguments[int(words[0]) if words and words[0].isdecimal() else 1 :]
        elif name == "set" and words[:1] == ["--"]:
            self.state.arguments = words[1:]
        elif name == "set" and _exports(words) is not None:
            self.state.exports_all = _exports(words) is True

    def _call(self, name: str, arguments: list[str]) -> Verdict:
        held, local = self.state.arguments, dict(self.state.variables)
        self.state.arguments = arguments
        names = self._variables.local
        self._variables.local = set(self._before)
        for each, value in self._before.items():
            self.state.assign(each, value)
        try:
            return self._walk(self.state.functions[name])
        except _Ends as end:
            if end.what != "return":
                raise
            return None
        finally:
            for each in self._variables.local:
                self.state.variables.pop(each, None)
                if each in local:
                    self.state.variables[each] = local[each]
            self.state.arguments, self._variables.local = held, names

    def _text(self, text: str) -> Verdict:
        """Walks through a script inside the script."""
        if self.depth > DEEPEST:
            raise Damaged(f"scripts within scripts, more than {DEEPEST} deep")
        self.state.spend(len(text))
        try:
            return self._walk(TreeReader(text).script())
        except Damaged as error:
            if "beyond" in str(error) or "more than" in str(error):
                raise
            self.state.note(f"The script in {text[:60]} cannot be read: {error}.")
            return DONE


def _exports(words: list[str]) -> bool | None:
    """Whether words of `set` export what is set from here on; None where they say nothing of it."""
    for before, word in pairwise(["", *words]):
        for sign, exports in (("-", True), ("+", False)):
            if re.fullmatch(rf"[{sign}]\w*a\w*", word) or (
                word == "allexport" and re.fullmatch(rf"[{sign}]\w*o", before)
            ):
                return exports
    return None


def _script_in(words: list[str]) -> str | None:
    """Return the script that a shell runs: `bash -c "..."`."""
    for i, word in enumerate(words[:-2]):
        if word.rpartition("/")[2] in _RUNS_TEXT and re.fullmatch(r"-\w*c", words[i + 1]):
            return words[i + 2]
    return None
