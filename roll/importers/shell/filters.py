"""Programs that change the text they read, as far as a script that starts a run uses them: `tr`, `cut`, `wc`, ..."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from roll.importers.shell.arithmetic import whole_number

_LONGEST = 4096
_PRINTED = re.compile(r"\{ *print +\$?(NF|[1-9]\d{0,2}) *;? *\}")
_REPLACED = re.compile(
    r"s(?P<sign>[/|#,:@])(?P<old>(?:(?!(?P=sign)).)*)(?P=sign)(?P<new>(?:(?!(?P=sign)).)*)(?P=sign)(?P<flags>g?)"
)
_SPECIAL = re.compile(r"[][\\.*^$&+?(){}|]")
_NAMED = {r"\n": "\n", r"\t": "\t", "[:space:]": " \t\n", r"\\": "\\"}
_CASES = {"upper": ("A-Z", "[:upper:]"), "lower": ("a-z", "[:lower:]")}
_OF_BC = re.compile(r"[-+*/%^() \t\d]+(?:(?:[<>]=?|[!=]=)[-+*/%^() \t\d]+)?")
_NOT_OF_BC = re.compile(r"\*\*|--|(?:^|[-+*/%^(<>=])[ \t]*\+", re.ASCII)
"""Signs that mean something else to bc, or nothing."""
_LINES_ALONE = ("wc", "head", "tail")
"""Filters that look at lines alone, of which a part may be open."""


def filtered(words: Sequence[str], text: str) -> str | None:
    """Return what a program prints of a text, with the ends of lines; None for another program, or one with options
    that are not read here.

    Example: `wc -w` of "a b" is "2", `cut -d, -f2` of "a,b" is "b".
    """
    name, arguments = words[0].rpartition("/")[2], list(words[1:])
    filter_of = _FILTERS.get(name)
    is_open = "$" in text or "`" in text
    if filter_of is None or len(text) > _LONGEST or (is_open and name not in _LINES_ALONE):
        return None
    if is_open and name == "wc" and arguments != ["-l"]:
        return None
    return filter_of(arguments, text)


def _each(change: Callable[[str], str], text: str) -> str:
    """The text with every line changed."""
    return _joined(map(change, text.splitlines()))


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _wc(arguments: list[str], text: str) -> str | None:
    counts = {"-l": text.count("\n"), "-w": len(text.split()), "-c": len(text.encode())}
    return str(counts[arguments[0]]) if len(arguments) == 1 and arguments[0] in counts else None


def _tr(arguments: list[str], text: str) -> str | None:
    """Removes signs, or puts others in their place."""
    sets = [_NAMED.get(argument, argument) for argument in arguments if not argument.startswith("-")]
    options = [argument for argument in arguments if argument.startswith("-")]
    for before, after, change in (("lower", "upper", str.upper), ("upper", "lower", str.lower)):
        if not options and len(sets) == 2 and sets[0] in _CASES[before] and sets[1] in _CASES[after]:
            return change(text)
    if options in (["-cd"], ["-dc"]) and len(sets) == 1 and "-" not in sets[0][1:-1] and "[" not in sets[0]:
        return "".join(char for char in text if char in sets[0])
    if any("-" in each[1:-1] or "[" in each for each in sets):
        return None
    if options == ["-d"] and len(sets) == 1:
        return "".join(char for char in text if char not in sets[0])
    if options or len(sets) != 2 or not sets[1]:
        return None
    return text.translate({ord(old): sets[1][min(i, len(sets[1]) - 1)] for i, old in enumerate(sets[0])})


def _cut(arguments: list[str], text: str) -> str | None:
    match = re.fullmatch(r"(?:-d *(.) +-f *(\d+)|-f *(\d+) +-d *(.))", " ".join(arguments), re.DOTALL)
    if match is None:
        return None
    sign, place = match[1] or match[4], int(match[2] or match[3])
    return _each(lambda line: _part(line, sign, place), text) if place else None


def _part(line: str, sign: str, place: int) -> str:
    parts = line.split(sign)
    return line if len(parts) == 1 else next(iter(parts[place - 1 : place]), "")


def _ends(is_first: bool) -> Callable[[list[str], str], str | None]:
    def end(arguments: list[str], text: str) -> str | None:
        match = re.fullmatch(r"(?:-n *|-)?(\d+)", " ".join(arguments) or "10")
        number = int(match[1]) if match else 0
        lines = text.splitlines()
        return _joined(lines[:number] if is_first else lines[-number:]) if number else None

    return end


def _awk(arguments: list[str], text: str) -> str | None:
    """The number of a line's parts, or one of them."""
    match = re.fullmatch(r"(?:-F *(\S))? *(\{.*\})", " ".join(arguments), re.DOTALL)
    printed = _PRINTED.fullmatch(match[2].strip()) if match else None
    if match is None or printed is None:
        return None
    parts = [line.split(match[1]) if match[1] else line.split() for line in text.splitlines()]
    is_count = "$" not in match[2]
    if is_count and printed[1] != "NF":
        return None
    if is_count:
        return _joined(str(len(each)) for each in parts)
    place = len if printed[1] == "NF" else lambda each: int(printed[1])
    return _joined(next(iter(each[place(each) - 1 : place(each)]), "") for each in parts)


_ALL_BUT = re.compile(r"s/\[\^([^]\\/^-])\]//g")


def _sed(arguments: list[str], text: str) -> str | None:
    if len(arguments) == 1 and (kept := _ALL_BUT.fullmatch(arguments[0])):
        return _each(lambda line: "".join(char for char in line if char == kept[1]), text)
    match = _REPLACED.fullmatch(arguments[0]) if len(arguments) == 1 else None
    if match is None or not match["old"] or _SPECIAL.search(match["old"].removesuffix("$") + match["new"]):
        return None
    if match["old"].endswith("$"):
        end, new = match["old"][:-1], match["new"]
        return _each(lambda line: line.removesuffix(end) + new if line.endswith(end) else line, text)
    count = -1 if match["flags"] else 1
    return _each(lambda line: line.replace(match["old"], match["new"], count), text)


def _grep(arguments: list[str], text: str) -> str | None:
    """Each place of a plain text on a line of its own, or the number of lines with one."""
    if len(arguments) == 2 and arguments[0] == "-c" and (arguments[1] == "." or not _SPECIAL.search(arguments[1])):
        return str(sum(bool(line) if arguments[1] == "." else arguments[1] in line for line in text.splitlines()))
    if len(arguments) != 2 or arguments[0] != "-o" or not arguments[1] or _SPECIAL.search(arguments[1]):
        return None
    return _joined([arguments[1]] * text.count(arguments[1]))


def _bc(arguments: list[str], text: str) -> str | None:
    """The value of one sum of whole numbers by bc's rules: `^` is a power, and 010 is 10."""
    written = text.strip()
    if arguments or not _OF_BC.fullmatch(written) or _NOT_OF_BC.search(written):
        return None
    value = whole_number(re.sub(r"\b0+(?=\d)", "", written).replace("^", "**"), {})
    return None if value is None else str(value)


def _xargs(arguments: list[str], text: str) -> str | None:
    return None if arguments or re.search(r"['\"\\]", text) else " ".join(text.split())


_FILTERS: Mapping[str, Callable[[list[str], str], str | None]] = {
    "wc": _wc,
    "tr": _tr,
    "cut": _cut,
    "head": _ends(is_first=True),
    "tail": _ends(is_first=False),
    "awk": _awk,
    "sed": _sed,
    "grep": _grep,
    "bc": _bc,
    "xargs": _xargs,
}
