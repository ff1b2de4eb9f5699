"""The variables that a script sets, as far as the script alone decides them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from roll.importers.shell.arithmetic import whole_number
from roll.importers.shell.state import State
from roll.importers.shell.syntax_tree import TreeReader
from roll.importers.shell.values import text_of, words_of

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=(.*)", re.DOTALL)
_DECIDES = "stands in an if or a loop and is not followed"


@dataclass
class Variables:
    """Sets variables of a state. `undecided`: tests around that nothing here decides; `local`: names that the function
    declares for itself."""

    state: State
    undecided: int = 0
    local: set[str] = field(default_factory=set)

    def declare(self, words: tuple[str, ...]) -> None:
        for word in words[1:]:
            if ASSIGNMENT.fullmatch(word):
                self.assign(word, is_local=words[0] in ("local", "declare", "typeset"))

    def assign(self, word: str, is_local: bool = False) -> None:
        match = ASSIGNMENT.fullmatch(word)
        assert match is not None
        name, index, adds, value = match.groups()
        if is_local and self.state.arguments is not None:
            self.local.add(name)
        if self.undecided:
            self.write(name, value, is_known=False)
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
    """Words of an array as it is written, one after the other."""
    reader = TreeReader(inside)
    found: list[str] = []
    while True:
        reader.skip(newlines=True)
        if reader.at >= len(inside):
            return found
        written = reader.word()
        reader.at += not written
        found += words_of(written, state) if written else []
        state.spend(0)
