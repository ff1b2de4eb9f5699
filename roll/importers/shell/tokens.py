"""The words of a shell script, as they are written, one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

from roll.importers.shell.quoted_parts import Damaged, document_end, end_of, end_of_brackets

_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_FILE = re.compile(r"\d+[<>]|&>|[<>]")
_REDIRECTION = re.compile(r"\d*(<<<|<<-?|[<>&|]+)[ \t]*")


@dataclass
class WordReader:
    """Goes through a text once, word by word."""

    text: str
    at: int = 0
    pending: list[tuple[str, bool]] = field(default_factory=list)
    """Ends of the here-documents that begin behind this line, and whether tabs before them count."""
    here_string: str = ""
    """The text that the last command reads, as it is written behind `<<<`."""

    def tokens(self) -> list[str]:
        """Words up to the end of the command. Within [[ ]], operators are words too."""
        found: list[str] = []
        self.here_string = ""
        while True:
            self.skip()
            in_test = bool(found) and found[0] == "[[" and found[-1] != "]]"
            if self.at >= len(self.text) or (self.text[self.at] in "\n;" and not in_test):
                return found
            if in_test and self.text[self.at] in "&|()<>;\n":
                sign = self.text[self.at : self.at + 2]
                found.append(sign if sign in ("&&", "||") else self.text[self.at])
                self.at += len(found[-1])
            elif _FILE.match(self.text, self.at):
                self._redirection()
            elif self.text[self.at] in "|&()":
                return found
            else:
                found.append(self.word())

    def word(self) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in " \t\r\n;|&()<>":
            here = self.at
            self.at = self.substitution(here, partial(end_of, self.text, here))
            if self.text[self.at : self.at + 1] == "(" and _ARRAY.fullmatch(self.text, start, self.at):
                self.at = self.substitution(here, lambda: end_of_brackets(self.text, self.at))
        return self.text[start : self.at]

    def _redirection(self) -> None:
        """Takes `2>&1`, `> file` and the like out; a here-document is noted."""
        match = _REDIRECTION.match(self.text, self.at)
        self.at = match.end() if match else self.at + 1
        if self.text[self.at : self.at + 1] == "(":  # a command in the place of a file
            self.at = self.substitution(self.at, lambda: end_of_brackets(self.text, self.at))
            return
        word = self.word()
        sign = match[1] if match else ""
        if sign in ("<<", "<<-"):
            self.pending.append((re.sub(r"['\"\\]", "", word), sign == "<<-"))
        elif sign == "<<<":
            self.here_string = word

    def skip(self, newlines: bool = False) -> None:
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r" or (newlines and char in "&;" and not self.text.startswith((";;", ";&"), self.at)):
                self.at += 1
            elif self.text.startswith(("\\\n", "\\\r\n"), self.at):
                self.at = self.text.index("\n", self.at) + 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char == "\n" and newlines:
                self.at += 1
                self._documents()
            else:
                return

    def _documents(self) -> None:
        """Goes over the lines of here-documents: no commands."""
        for end, takes_tabs in self.pending:
            self.at = document_end(self.text, self.at, end, takes_tabs)
        self.pending = []

    def substitution(self, start: int, end: Callable[[], int]) -> int:
        """End position that `end` finds. Raises Damaged with the line."""
        try:
            return end()
        except Damaged as error:
            self.damaged(start, str(error))

    def damaged(self, at: int, message: str) -> NoReturn:
        raise Damaged(f"line {self.text.count(chr(10), 0, at) + 1}: {message}")
