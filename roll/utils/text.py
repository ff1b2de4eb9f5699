"""Text that others wrote - a model, an environment, a data file - made fit to be shown."""

import re
from collections.abc import Iterable, Sequence
from string import Formatter

_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, and what turns the direction of writing
    "\ud800-\udfff"  # halves of surrogate pairs, which no file can hold
    "\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f]"  # annotations, no characters, and tags, which nobody sees
)


def visible(text: str) -> str:
    r"""The text with every character spelled out that would steer a terminal, change the order in which the text is
    read, or that UTF-8 cannot hold. Tabs and newlines stay."""
    if text.isprintable():  # as most are
        return text
    return _STEERING.sub(lambda match: _spelled_out(ord(match[0])), text)


def _spelled_out(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def storable(text: str) -> str:
    r"""The text with halves of surrogate pairs, which UTF-8 and strict readers of JSON refuse, spelled out: \ud800."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def middle_left_out(text: str, num_characters: int) -> str:
    """The beginning and the end of a text that is longer than `num_characters`, with a line between that says so."""
    if len(text) <= num_characters:
        return text
    half = num_characters // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[len(text) - half :]}"


def show(value: object, limit: int = 80) -> str:
    """A value as it stands in a message: short, quoted when it is text."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        text = f"a {type(value).__name__} too large to write"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def counted(number: int, noun: str, plural: str = "") -> str:
    """Example: counted(2, "update") == "2 updates"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def short(value: object) -> str:
    """A value as it is written in a plan. Examples: short(1e-6) == "1e-6", short(True) == "true", short("a") == "a"."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return re.sub(r"e([+-])0(?=\d$)", r"e\1", f"{value:g}")
    if isinstance(value, list | tuple):
        return ", ".join(map(short, value))
    return value if isinstance(value, str) else show(value)


def pieces(template: str) -> list[tuple[str, str | None]]:
    """Plain text and the name of the field behind it. Nothing but names stands in braces: no attribute of an object, no
    format. Raises ValueError for others, and for braces that do not match."""
    found: list[tuple[str, str | None]] = []
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{error}; write {{{{ and }}}} for literal braces") from None
    for text, name, form, conversion in parts:
        if name is not None and (form or conversion or not name.isidentifier()):
            field = name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
            raise ValueError(f"{{{field}}} is not a plain field; write {{{{ and }}}} for literal braces")
        found.append((text, name))
    return found
