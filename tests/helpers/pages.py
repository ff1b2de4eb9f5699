"""The pages of docs/ as tests read them: what a page shows is run as it stands."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def snippets(page: str, language: str) -> list[str]:
    """What a page of docs/ shows between ```language and ```, in its order. Example: snippets("x.md", "python")[0]."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. With a `title` it is the file of that name."""

    language: str
    title: str | None
    text: str


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page of docs/, in its order. Example: ```yaml title="a.yaml" opens a file."""
    text = (DOCS / page).read_text(encoding="utf-8")
    fences = re.findall(r'^```(\w+)(?: title="([^"\n]+)")?\n(.*?)^```$', text, re.DOTALL | re.MULTILINE)
    found = [Block(language, title or None, body) for language, title, body in fences]
    if 2 * len(found) != text.count("```"):
        raise ValueError(f'{page}: a fence that is no ```language or ```language title="..."')
    return found


def metric_entries() -> list[str]:
    """What the first column of docs/metrics.md lists: names, in which <parts> and `...` stand for what varies."""
    rows = [line for line in (DOCS / "metrics.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def unlisted(names: Iterable[str], entries: Sequence[str]) -> list[str]:
    """Names of a recorded run that no entry of docs/metrics.md describes.

    Example: unlisted(["env/lake/crash"], ["env/<tag>/crash"]) == []; `<part>` holds no slash, `...` may.
    """
    patterns = [re.compile(re.sub(r"<\w+>", "[^/]+", entry.replace("...", ".+"))) for entry in entries]
    return sorted(name for name in set(names) if not any(pattern.fullmatch(name) for pattern in patterns))


def write_files(codes: Iterable[str], folder: Path) -> list[str]:
    """Writes each snippet that begins with a docstring `name.py: ...` as that file; returns the names of the
    modules."""
    found = {name[1]: code for code in codes if (name := re.match(r'"""(\w+)\.py:', code)) is not None}
    for name, code in found.items():
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
    return list(found)


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """The folder is first on Python's path for as long; what was imported from it is forgotten, and before that
    whatever has the name of one of its modules."""
    for file in folder.glob("*.py"):
        sys.modules.pop(file.stem, None)
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]
