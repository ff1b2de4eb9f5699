"""The command of a shell script, read and never run: its variables, arrays, arithmetic and continued lines.

What only a shell could say - other programs' output, arguments of the script, what an `if` decides - stays open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from roll.errors import ConfigError
from roll.importers.shell_numbers import whole_number

_NAME = re.compile(r"[A-Za-z_]\w*")
_PLAIN, _PLAIN_IN_QUOTES = re.compile(r"[^\s;|&()<>'\"$`\\]+"), re.compile(r"[^\"$`\\]+")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_OVERRIDE = re.compile(r"(\+{0,2}|~)[A-Za-z_]\w*(\.[\w-]+)*=.*|~[A-Za-z_]\w*(\.[\w-]+)+", re.DOTALL)
_OPEN = re.compile(r"\$(\d|\(|\{|`)|`")
_DECLARING = ("export", "local", "declare", "readonly", "typeset")
_BETWEEN = ("then", "do", "else", "{", "}", "!")
_BLOCKS = {"if": "fi", "for": "done", "while": "done", "until": "done", "case": "esac"}
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Command:
    """`program` are the words before the first override, such as python3, -m, verl.trainer.main_ppo; `flags` the
    words that begin with a dash, `others` what is neither."""

    program: tuple[str, ...]
    overrides: tuple[str, ...]
    flags: tuple[str, ...]
    others: tuple[str, ...]
    notes: tuple[str, ...]

    def flag(self, *names: str) -> str | None:
        """The value of --name=value or --name value."""
        words = [*self.program, *self.flags, *self.others]
        for i, word in enumerate(words):
            name, equals, value = word.lstrip("-").partition("=")
            if word.startswith("--") and name.replace("_", "-") in names:
                return value if equals else next(iter(words[i + 1 : i + 2]), None)
        return None


def is_open(value: object) -> bool:
    """True for a text in which the script leaves something to the shell."""
    return isinstance(value, str) and _OPEN.search(value.replace("${oc.env:", "")) is not None


def command_of(path: Path) -> Command:
    """The command of a script with the most key=value words. Raises ConfigError if there is none."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is neither a YAML nor a text.") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{path} is larger than {_MOST_BYTES >> 20} MiB: that is no script of a command.")
    return find_command(text, str(path))


def find_command(text: str, path: str = "the script") -> Command:
    """The same of a text."""
    script = _Script(text)
    found = [words for words in script.commands() if any(map(_is_override, words))]
    if not found:
        raise ConfigError(f"{path}: no command with key=value words is in it, such as `python -m ... data.x=1`.")
    words = max(found, key=lambda words: sum(map(_is_override, words)))
    start = _start(words)
    rest = words[start:]
    others = [f"Not imported, another command: {' '.join(more[: _start(more)])} ..." for more in found if more != words]
    return Command(
        tuple(words[:start]),
        tuple(word for word in rest if _is_override(word)),
        tuple(word for word in rest if word.startswith("-")),
        tuple(word for word in rest if not _is_override(word) and not word.startswith("-")),
        tuple(dict.fromkeys([*others, *script.notes])),
    )


def _start(words: list[str]) -> int:
    return next(i for i, word in enumerate(words) if _is_override(word))


def _is_override(word: str) -> bool:
    return _OVERRIDE.fullmatch(word) is not None


@dataclass
class _Script:
    """Goes through a text once; `variables` are those known so far."""

    text: str
    at: int = 0
    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def commands(self) -> Iterator[list[str]]:
        """Words of each command, without the assignments before it."""
        blocks: list[str] = []
        while self.at < len(self.text):
            words = self._command(bool(blocks))
            if not words:
                continue
            if words[0] == "for" and len(words) > 1:
                self._leave_open(words[1])
            if words[0] in _BLOCKS:
                blocks.append(_BLOCKS[words[0]])
            elif blocks and words[0] == blocks[-1]:
                blocks.pop()
            else:
                yield words

    def _command(self, is_conditional: bool) -> list[str]:
        words: list[str] = []
        while (found := self._words()) is not None:
            for word in found:
                is_program = bool(words) and words[0] not in _DECLARING
                if is_program or not (word in _BETWEEN or self._assigns(word, is_conditional)):
                    words.append(word)
        return words

    def _assigns(self, word: str, is_conditional: bool) -> bool:
        match = _ASSIGNMENT.fullmatch(word)
        if match is None:
            return False
        name, adds, value = match.groups()
        if is_conditional:
            self.notes.append(f"{name}={value} stands in an if or a loop and is not followed.")
            self._leave_open(name)
            return True
        array = self._array() if not value and self.text[self.at : self.at + 1] == "(" else None
        if array is not None:
            self.arrays[name] = [*self.arrays.get(name, []), *array] if adds else array
        else:
            self.variables[name] = self.variables.get(name, "") + value if adds else value
        return True

    def _leave_open(self, name: str) -> None:
        """For a variable without a value so far, of which only a run of the script would tell."""
        self.variables.setdefault(name, f"${{{name}}}")

    def _array(self) -> list[str]:
        self.at += 1
        found: list[str] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text[self.at] in "\n;":
                self.at += 1
            else:
                found += self._words() or []
        self.at += 1
        return found

    def _words(self) -> list[str] | None:
        """The next word, several where a variable holds several; None at the end of a command."""
        self._skip_blanks()
        if self.at >= len(self.text) or self.text[self.at] in "\n;|&":
            self.at += 1
            return None
        if self.text[self.at] in "()":
            self.at += 1
            return []
        pieces: list[list[str]] = [[]]  # of each word
        is_there = False
        while self.at < len(self.text) and self.text[self.at] not in " \t\r\n;|&()":
            is_there = True
            if self.text[self.at] in "<>":
                return self._redirection("".join(pieces[0]))
            _join(pieces, self._pieces())
        words = ["".join(parts) for parts in pieces]
        return [word for word in words if word or len(words) == 1] if is_there else []

    def _skip_blanks(self) -> None:
        while self.at < len(self.text):
            if self.text[self.at] in " \t\r":
                self.at += 1
            elif self.text.startswith(("\\\n", "\\\r\n"), self.at):
                self.at = self.text.index("\n", self.at) + 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def _redirection(self, before: str) -> list[str]:
        """Takes `2>&1`, `> file` and the like out; what stands before is a word unless it is a number."""
        is_text = self.text.startswith("<<", self.at) and not self.text.startswith("<<<", self.at)
        while self.at < len(self.text) and self.text[self.at] in "<>&":
            self.at += 1
        words = self._words()
        if is_text and words:
            self._cut_out(words[0].removeprefix("-"))
        return [] if before.isdecimal() or not before else [before]

    def _cut_out(self, end: str) -> None:
        """Takes away the lines of a here-document, which follow this one: no commands."""
        head, newline, lines = self.text[self.at :].partition("\n")
        body = re.split(rf"^\t*{re.escape(end)}$", lines, maxsplit=1, flags=re.MULTILINE)
        self.text = self.text[: self.at] + head + newline + (body[1].removeprefix("\n") if len(body) > 1 else "")

    def _pieces(self) -> list[str]:
        """What the next characters of a word stand for: one text, or the entries of an array or of a variable that
        is not quoted."""
        char = self.text[self.at]
        if char == "'":
            end = self.text.find("'", self.at + 1)
            end = len(self.text) if end < 0 else end
            piece, self.at = self.text[self.at + 1 : end], end + 1
            return [piece]
        if char == '"':
            return self._quoted()
        if char in "$`":
            pieces, is_whole = self._expansion()
            return pieces if is_whole else pieces[0].split() or [""]
        if char == "\\":
            self.at += 2
            return [self.text[self.at - 1 : self.at].replace("\n", "")]
        return [self._run(_PLAIN)]

    def _quoted(self) -> list[str]:
        self.at += 1
        pieces: list[list[str]] = [[]]
        while self.at < len(self.text) and self.text[self.at] != '"':
            if self.text[self.at] in "$`":
                _join(pieces, self._expansion()[0])
            elif self.text[self.at] == "\\" and self.text[self.at + 1 : self.at + 2] in tuple('"\\$`\n'):
                pieces[-1].append(self.text[self.at + 1].replace("\n", ""))
                self.at += 2
            else:
                pieces[-1].append(self._run(_PLAIN_IN_QUOTES))
        self.at += 1
        return ["".join(parts) for parts in pieces]

    def _run(self, pattern: re.Pattern[str]) -> str:
        """One character, whatever it is, and what follows of the pattern."""
        start = self.at
        match = pattern.match(self.text, start + 1)
        self.at = start + 1 if match is None else match.end()
        return self.text[start : self.at]

    def _expansion(self) -> tuple[list[str], bool]:
        """What stands for `$...` here, and whether it is not to be split. Output of programs stays as it is written."""
        sign = self.text[self.at : self.at + 3]
        for opening, closing in (("$((", "))"), ("$[", "]")):  # the second is bash's older form of the same
            if sign.startswith(opening):
                inside = self._until(closing, len(opening))
                value = whole_number(inside, self.variables)
                return [f"{opening}{inside}{closing}" if value is None else str(value)], True
        if sign.startswith("$("):
            return [f"$({self._until(')', 2)})"], True
        if sign.startswith("`"):
            return [f"`{self._until('`', 1)}`"], True
        if sign.startswith("${"):
            return self._parameter(self._until("}", 2))
        name = _NAME.match(self.text, self.at + 1)
        if name is not None:
            self.at = name.end()
            return [self._variable(name[0])], False
        self.at += 2
        if sign[1:2] in ("@", "*"):
            return [""], True
        return [sign[:2]], False

    def _until(self, end: str, after: int) -> str:
        """The text up to an end, brackets within it closed."""
        start, depth, opens = self.at + after, 0, {")": "(", "))": "(", "}": "{"}.get(end)
        i = start
        while i < len(self.text):
            if depth == 0 and self.text.startswith(end, i):
                break
            depth += (self.text[i] == opens) - (opens is not None and self.text[i] == end[0])
            i += 1
        self.at = i + len(end)
        return self.text[start:i]

    def _variable(self, name: str) -> str:
        """A variable that the script does not set is one of the environment, if it is named like those."""
        return self.variables.get(name, f"${{oc.env:{name}}}" if name.isupper() else "")

    def _parameter(self, inside: str) -> tuple[list[str], bool]:
        """Example: A, A:-default, A[@] of `${...}`."""
        if ":" in inside and inside.startswith("oc."):
            return ["${" + inside + "}"], False
        name = _NAME.match(inside)
        if name is None:
            return ["${" + inside + "}"], False
        rest = inside[name.end() :]
        if rest in ("[@]", "[*]"):
            return self.arrays.get(name[0], []), True
        value = self.variables.get(name[0], "") if rest else self._variable(name[0])
        if rest.startswith((":-", "-", ":=", "=")) and not value:
            inner = _Script(f'"{rest.lstrip(":").removeprefix("-").removeprefix("=").strip(chr(34))}"')
            inner.variables = self.variables
            return inner._quoted(), False
        return [value if rest.startswith((":", "-", "=")) or not rest else "${" + inside + "}"], False


def _join(words: list[list[str]], found: Sequence[str]) -> None:
    """Adds the first text to the last word, and each further one as a word of its own."""
    words[-1] += found[:1]
    words += [[piece] for piece in found[1:]]
