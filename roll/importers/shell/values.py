"""Values of words of a shell script, after quotes, variables, arrays and arithmetic."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from itertools import takewhile

from roll.importers.shell.arithmetic import whole_number
from roll.importers.shell.expansions import parameter
from roll.importers.shell.filters import filtered
from roll.importers.shell.quoted_parts import Damaged, end_of, expansion_end
from roll.importers.shell.state import State, opened
from roll.importers.shell.syntax_tree import Simple, Steps, TreeReader

_PLAIN, _PLAIN_IN_QUOTES = re.compile(r"[^'\"$`\\]+"), re.compile(r"[^\"$`\\]+")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_BRACES = re.compile(r"\{(-?\d{1,4})\.\.(-?\d{1,4})\}")


def words_of(written: str, state: State) -> list[str]:
    """None for an empty array or a variable that is not quoted and empty, several for one of several words."""
    braces = _BRACES.fullmatch(written)
    if braces is not None:
        first, last = int(braces[1]), int(braces[2])
        step = 1 if last >= first else -1
        return [str(i) for i in range(first, last + step, step)]
    return _Expansion(written, state).fields()


def text_of(written: str, state: State) -> str:
    """One text, as in an assignment or between quotes."""
    return " ".join(_Expansion(written, state, splits=False).fields())


class _Expansion:
    def __init__(self, text: str, state: State, splits: bool = True):
        self._text, self._state, self._splits = text, state, splits
        self._at = 0
        self._fields: list[list[str]] = [[]]
        self._is_there = False

    def fields(self) -> list[str]:
        while self._at < len(self._text):
            self._piece()
        found = ["".join(parts) for parts in self._fields]
        self._state.spend(sum(map(len, found)), len(found) - 1)
        if len(found) == 1 and not found[0] and not self._is_there:
            return []
        return found if self._is_there or not self._splits else [word for word in found if word]

    def _piece(self) -> None:
        char = self._text[self._at]
        if char in "'\"":
            end = end_of(self._text, self._at)
            inner, self._at = self._text[self._at + 1 : end - 1], end
            if char == "'":
                self._add([inner], is_quoted=True)
            else:
                self._quoted(inner)
        elif char == "\\":
            self._add([self._text[self._at + 1 : self._at + 2].replace("\n", "")], is_quoted=True)
            self._at += 2
        elif self._text.startswith("$'", self._at):
            end = expansion_end(self._text, self._at)
            inner, self._at = self._text[self._at + 2 : end - 1], end
            self._add([re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), inner)], is_quoted=True)
        elif char in "$`":
            pieces, is_whole = self._expanded(in_quotes=False)
            self._add(pieces if is_whole or not self._splits else _split(pieces, self._state.separators))
        else:
            self._add([self._run(_PLAIN)])

    def _add(self, pieces: Sequence[str], is_quoted: bool = False) -> None:
        """Adds the first text to the last word, and each further one as a word of its own."""
        self._is_there = self._is_there or is_quoted
        self._state.spend(0, max(0, len(pieces) - 1))
        self._fields[-1] += pieces[:1]
        self._fields += [[piece] for piece in pieces[1:]]

    def _quoted(self, inner: str) -> None:
        held, self._text, place = self._text, inner, self._at
        self._at, is_whole_array = 0, False
        while self._at < len(inner):
            char = inner[self._at]
            if char in "$`":
                pieces, is_whole = self._expanded(in_quotes=True)
                is_whole_array = is_whole_array or (is_whole and not pieces)
                self._add(pieces if is_whole else [" ".join(pieces)])
            elif char == "\\" and inner[self._at + 1 : self._at + 2] in tuple('"\\$`\n'):
                self._add([inner[self._at + 1].replace("\n", "")])
                self._at += 2
            else:
                self._add([self._run(_PLAIN_IN_QUOTES)])
        self._text, self._at = held, place
        self._is_there = self._is_there or not is_whole_array

    def _run(self, pattern: re.Pattern[str]) -> str:
        """One character, whatever it is, and what follows of the pattern."""
        start = self._at
        match = pattern.match(self._text, start + 1) if self._text[start] not in "$`" else None
        self._at = start + 1 if match is None else match.end()
        return self._text[start : self._at]

    def _expanded(self, in_quotes: bool) -> tuple[list[str], bool]:
        """Expand `$...` at this place, and tell whether the result must not be split. Output of programs stays as it is
        written, but for those that only change a text."""
        start = self._at
        is_old = self._text[start] == "`"
        self._at = end_of(self._text, start) if is_old else expansion_end(self._text, start, 0, in_quotes)
        written = self._text[start : self._at]
        if written.startswith("$((") and written.endswith("))"):
            return [self._sum(written, written[3:-2])], True
        if written.startswith("$["):
            return [self._sum(written, written[2:-1])], True
        if written.startswith("$(") or is_old:
            printed = _output(written, written[1:-1] if is_old else written[2:-1], self._state)
            return [printed], printed == written
        if written.startswith("${"):
            return parameter(written[2:-1], self._state, lambda text: _inner(text, self._state, in_quotes))
        name = written[1:]
        if name in ("@", "*"):
            return self._state.entries(name), name == "@"
        if name == "#" and self._state.arguments is not None:
            return [str(len(self._state.arguments))], True
        return [self._state.value(name) if name else "$"], False

    def _sum(self, written: str, inside: str) -> str:
        plain = text_of(inside, self._state) if "$" in inside or "`" in inside else inside
        value = whole_number(plain, self._state.variables)
        return written if value is None else str(value)


def _inner(text: str, state: State, in_quotes: bool) -> str:
    """A part of `${...}`; between quotes a single one is a sign as any other."""
    if not in_quotes:
        return text_of(text, state)
    return text_of('"' + text.replace('"', "") + '"', state)


def _split(pieces: Sequence[str], signs: str) -> list[str]:
    return [word for piece in pieces for word in (divided(piece, signs) or [""])]


def divided(text: str, signs: str) -> list[str]:
    """Divide a text at signs that stand between words. Example: `0,1` by a comma is 0 and 1."""
    if not signs.strip():
        return _at_blanks(text)
    if "$" in text or "`" in text:
        return [text]
    parts = re.split("[" + re.escape(signs) + "]", text)
    return parts if parts[-1] else parts[:-1]


def _at_blanks(text: str) -> list[str]:
    """The words of a text, of which output that only a run would tell is one, whatever stands in it.

    Example: "x-$(date +%s) y" is x-$(date +%s) and y.
    """
    if "$" not in text and "`" not in text:
        return text.split()
    words, start, at = list[str](), 0, 0
    is_whole = True
    while at < len(text):
        if text[at].isspace():
            words.append(text[start:at])
            start = at = at + 1
        elif is_whole and (text[at] == "`" or text[at : at + 2] in ("$(", "${", "$[")):
            try:
                at = end_of(text, at)
            except Damaged:  # a sign of the text itself: none behind it is tried
                is_whole = False
        else:
            at += 1
    return [word for word in (*words, text[start:]) if word]


def _output(written: str, inside: str, state: State) -> str:
    """Output of programs that only change a text, such as basename; others stay as they are written."""
    try:
        steps = TreeReader(inside).script()
    except Damaged:
        return written
    programs = [node.arguments for _, node in steps if isinstance(node, Simple)]
    given = next((node.here_string for _, node in steps[:1] if isinstance(node, Simple)), "")
    if len(programs) != len(steps) or not programs:
        return written
    if (path := _first_path(steps, programs, state)) is not None:
        return path or written
    if any(sign != "|" for sign, _ in steps[1:]):
        return written
    text: str | None = f"{text_of(given, state)}\n"
    if not given:
        printed = _printed(programs[0], written, state)
        if printed == written:
            return written
        is_cut = programs[0][0] == "printf" or "n" in "".join(_options_of_echo(programs[0][1:]))
        text = printed if is_cut and programs[0][0] in ("echo", "printf") else f"{printed}\n"
    for words in programs if given else programs[1:]:
        text = filtered([each for word in words for each in words_of(word, state)], text)
        if text is None:
            return written
    return text.rstrip("\n")


def _first_path(steps: Steps, programs: Sequence[Sequence[str]], state: State) -> str | None:
    """Return the path that `cd PATH && pwd || realpath PATH || echo PATH` prints, of which each part may be missing:
    the whole path, or what is written where only a run would tell; empty for one that is not known, None for another
    list of programs."""
    ways = list[tuple[str, tuple[str, ...]]]()
    signs = [sign for sign, _ in steps[1:]] + [""]
    at = 0
    while at < len(programs):
        name, *arguments = programs[at]
        if name == "cd" and signs[at] not in ("||", "") and programs[at + 1][0] == "pwd":
            at += 1
        elif name not in (*_ABSOLUTE, "echo"):
            return None
        if signs[at] not in ("||", ""):
            return None
        ways.append((name, tuple(arguments)))
        at += 1
    if len(ways) == 1 and ways[0][0] != "cd":
        return None  # a program by itself
    paths = [[word for argument in arguments for word in words_of(argument, state)] for _, arguments in ways]
    paths = [[word for word in path if not word.startswith("-")] for path in paths]
    if any(path != paths[0] for path in paths) or len(paths[0]) != 1:
        return ""
    relative = paths[0][0] if ways[-1][0] == "echo" and "$(" not in paths[0][0] else ""
    return _folder(ways[0][1], state) or relative


def _printed(program_words: Sequence[str], written: str, state: State) -> str:
    """Return what one program prints; `written`, the whole text of the output, where only a run would tell."""
    program, *arguments = program_words
    if program == "scontrol" and arguments[:1] == ["show"] and arguments[1:2] in (["hostnames"], ["hostname"]):
        return _nodes(state) or written
    if program == "pwd":
        return opened("oc.env:PWD")
    if program in _PYTHONS and len(arguments) == 2 and arguments[0] == "-c":
        return _of_python(text_of(arguments[1], state)) or written
    if program == "awk" and len(arguments) == 1 and (sum := _OF_AWK.fullmatch(text_of(arguments[0], state))):
        value = whole_number(sum[1], {})
        return written if value is None or "/" in sum[1] else str(value)
    if program not in ("echo", "expr", "basename", "dirname", "printf", "seq", *_ABSOLUTE) or not arguments:
        return written
    if program in _ABSOLUTE:
        return _folder(arguments, state) or written
    values = [word for argument in arguments for word in words_of(argument, state) if argument != "--"]
    if program == "echo":
        return _echoed(values, written)
    if program == "printf":
        return _formatted(values, written)
    if program == "seq":
        return _counted(values) or written
    if program == "expr":
        return _of_expr(values) or written
    whole = values[0].rstrip("/") if values else ""
    if not whole or (program == "basename" and "$" in whole.rpartition("/")[2]) or "$(" in whole:
        return written
    if program == "dirname":
        return written if "/" not in whole and "$" in whole else whole.rpartition("/")[0] or "."
    return whole.rpartition("/")[2].removesuffix(values[1] if values[1:] else "")


_PYTHONS = ("python", "python3")
_OF_AWK = re.compile(r"\s*BEGIN\s*\{\s*print\s+([-+*/%()\d\s]+?)\s*;?\s*\}\s*")
_SUM_OF_PYTHON = re.compile(r"\s*print\(\s*((?:[-+*%()\d\s]|//)+?)\s*\)\s*;?\s*")
_LENGTH_OF_PYTHON = re.compile(r"""\s*print\(len\((['"])([^'"\\]*)\1\.split\((['"])([^'"\\]+)\3\)\)\)\s*""")
_FORMAT = re.compile(r"%(0?\d*)([sd%])")


def _of_python(text: str) -> str:
    """Return what a line of Python prints: a sum of whole numbers, or the length of a divided text; else empty."""
    if counted := _LENGTH_OF_PYTHON.fullmatch(text):
        return str(len(counted[2].split(counted[4])))
    sum = _SUM_OF_PYTHON.fullmatch(text)
    value = whole_number(sum[1].replace("//", "/"), {}) if sum else None
    return "" if value is None else str(value)


def _formatted(values: Sequence[str], written: str) -> str:
    """Return what printf prints of texts and whole numbers. Example: `%02d_%s` of 7 and a is 07_a."""
    form, rest = values[0] if values else "", list(values[1:])
    signs = _FORMAT.findall(form)
    wanted = sum(kind != "%" for _, kind in signs)
    if "%" in _FORMAT.sub("", form) or len(rest) > wanted or "$" in "".join(rest):
        return written
    texts = list[str]()
    for width, kind in signs:
        text = "%" if kind == "%" else rest.pop(0) if rest else ""
        if kind == "d" and not re.fullmatch(r"-?\d+", text):
            return written
        texts.append(text.zfill(int(width)) if width[:1] == "0" else text.rjust(int(width or 0)))
    made = iter(texts)
    return _FORMAT.sub(lambda _: next(made), re.sub(r"\\n$", "\n", form))


def _counted(values: Sequence[str]) -> str:
    """Return what seq prints. Example: `-s, 0 2` is 0,1,2."""
    words = list(values)
    sign = "\n"
    if words[:1] == ["-s"] and words[1:]:
        sign, words = words[1], words[2:]
    elif words[:1] and words[0].startswith("-s"):
        sign, words = words[0][2:], words[1:]
    if not 0 < len(words) < 4 or not all(re.fullmatch(r"-?\d{1,4}", word) for word in words):
        return ""
    numbers = [int(word) for word in words]
    first = numbers[0] if numbers[1:] else 1
    step = numbers[1] if numbers[2:] else 1
    last = numbers[-1]
    if not step:
        return ""
    return sign.join(map(str, range(first, last + (1 if step > 0 else -1), step)))


def _echoed(values: Sequence[str], written: str) -> str:
    """Return what echo prints; `written` of one that reads escapes. Example: `-n a b` is "a b"."""
    options = _options_of_echo(values)
    text = " ".join(values[len(options) :])
    return written if "e" in "".join(options) and "\\" in text else text


def _options_of_echo(values: Sequence[str]) -> list[str]:
    """The first words that echo takes for options. Example: -ne of `-ne a -n`."""
    return list(takewhile(re.compile(r"-[neE]+").fullmatch, values))


def _nodes(state: State) -> str:
    """The names of a job's nodes, a line for each, which only a run would tell; empty where none knows how many."""
    number = state.variables.get("SLURM_NNODES", "")
    return "\n".join(opened(f"node_{i}") for i in range(int(number))) if number.isdecimal() and len(number) < 4 else ""


_ABSOLUTE = ("realpath", "readlink")
_EXPR = re.compile(r"-?\d+|[-+*/%()]")


def _of_expr(words: Sequence[str]) -> str:
    """Value of an `expr` of whole numbers and their signs; empty for anything else.

    Example: 1024 + 3072 + 1000 is 5096.
    """
    if not all(_EXPR.fullmatch(word) for word in words):
        return ""
    value = whole_number(" ".join(words), {})
    return "" if value is None else str(value)


def _folder(arguments: Sequence[str], state: State) -> str:
    """The whole path that `cd ... && pwd` or realpath would print, where the words alone tell it; else empty.

    Example: "$(dirname "$0")/.." of /repo/scripts/run.sh is /repo.
    """
    values = [word for argument in arguments for word in words_of(argument, state)]
    paths = [word for word in values if not word.startswith("-")]
    if len(paths) != 1 or "$" in paths[0].removeprefix("${oc.env:") or not paths[0].startswith(("/", "${oc.env:")):
        return ""
    return posixpath.normpath(paths[0])
