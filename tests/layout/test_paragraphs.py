"""Lines of docstrings, comments and pages are full: none is longer than the limit, or broken long before it."""

import ast
import inspect
import re
import tokenize
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from tests.layout.source import REPOSITORY, modules

LIMIT = 120
ROOM = 25  # a line that could have held the next word and this much more was broken by a machine
FOLDERS = ("roll", "tests", "examples", "benchmarks", "tools")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "reports/*.md", "examples/**/*.md")
STARTS = re.compile(r"[-*>|#]|\d+\.|    |```")  # lists, tables, headings and code begin lines of their own
GOES_ON = re.compile(r"[a-z`(\[]")
OWN_LINE = re.compile(r"^\s*#", re.MULTILINE)


def test_no_line_of_a_page_is_longer_than_the_limit() -> None:
    """Rows of tables and links cannot be broken."""
    long = []
    for page in pages():
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > LIMIT and not line.startswith("|"):
                long.append(f"{page.relative_to(REPOSITORY)}:{number}: {len(line)}")
    assert long == []


def test_no_sentence_of_a_page_is_broken_long_before_the_limit() -> None:
    """Of those in English: Chinese has no spaces to break at."""
    found = []
    for page in (page for page in pages() if not page.name.endswith(".zh.md")):
        lines = prose(page.read_text(encoding="utf-8").splitlines())
        found += [f"{page.relative_to(REPOSITORY)}:{number}" for number in broken(lines, indent=0)]
    assert found == []


def test_no_sentence_of_a_docstring_or_comment_is_broken_long_before_the_limit() -> None:
    found = []
    for module in modules(*FOLDERS):
        for node in module.nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found += [f"{module.relative}:{number}" for number in broken_in_docstring(node)]
        for number, lines, indent in comments(module.path):
            found += [f"{module.relative}:{number + i - 1}" for i in broken(lines, indent)]
    assert found == []


def test_a_break_is_found_where_the_sentence_goes_on_and_only_there() -> None:
    assert list(broken(["null where null has", "no meaning."], indent=0)) == [1]
    assert list(broken(["A list:", "- first", "- second", "", "Ends.", "New sentence"], indent=0)) == []
    assert list(broken(["Shown:", "    a = 1", "    b = 2"], indent=0)) == []
    assert list(broken(["x" * 90, "long" * 8], indent=0)) == []


def pages() -> list[Path]:
    return sorted({path for pattern in PAGES for path in REPOSITORY.glob(pattern)})


def prose(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a page, those of fenced code left empty."""
    fenced = False
    for line in lines:
        fenced ^= line.lstrip().startswith("```")
        yield "" if fenced else line


def broken_in_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    text = ast.get_docstring(node, clean=False)
    if text is not None:
        lines = inspect.cleandoc(text).splitlines()
        first = node.body[0]
        lines[0] = f'"""{lines[0]}'
        yield from (first.lineno + number - 1 for number in broken(lines, first.col_offset))


def comments(path: Path) -> Iterator[tuple[int, list[str], int]]:
    """(number of the first line, texts, indent) of comments that have lines of their own."""
    block: list[str] = []
    start = indent = 0
    if OWN_LINE.search(path.read_text(encoding="utf-8")) is None:
        return
    with path.open("rb") as stream:
        tokens = [t for t in tokenize.tokenize(stream.readline) if t.type == tokenize.COMMENT]
    for token in (t for t in tokens if t.line.lstrip().startswith("#")):
        number, column = token.start
        if block and (number, column) != (start + len(block), indent):
            yield start, block, indent + 2
            block = []
        if not block:
            start, indent = number, column
        block.append(token.string.removeprefix("#").removeprefix(" "))
    if block:
        yield start, block, indent + 2


def broken(lines: Iterable[str], indent: int) -> Iterator[int]:
    """Numbers of the lines, from 1, after which a sentence goes on that had room before the limit."""
    for number, (line, after) in enumerate(pairwise(lines), 1):
        room = LIMIT - indent - len(line.rstrip()) - len((after.split() or [""])[0]) - 1
        ends = not line.strip() or line.rstrip().endswith((":", ";")) or line.startswith(("#", "    ", "|"))
        if room >= ROOM and not ends and not STARTS.match(after) and GOES_ON.match(after.lstrip()):
            yield number
