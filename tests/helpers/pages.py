"""The pages of docs/ as tests read them: what a page shows is run as it stands."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def snippets(page: str, language: str) -> list[str]:
    """What a page of docs/ shows between ```language and ```, in its order. Example: snippets("x.md", "python")[0]."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """The folder is first on Python's path for as long; what was imported from it is forgotten."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]
