"""Write the tutorials of docs/tutorials as notebooks: `make notebooks`, or `python tools/notebooks.py FOLDER`.

The pages are the source. Blocks of Python are cells, so are those of bash, and one with a title writes the file of that
name; everything else is text. A link to a tutorial leads to its notebook, one to another page to that page.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import jupytext

PAGES = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
LINK = re.compile(r"\]\(([\w./]+)(#[\w-]+)?\)")
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook(page: Path, folder: Path) -> Any:
    """The page as a notebook of nbformat that is written to `folder`, without outputs."""
    made = jupytext.reads(page.read_text(encoding="utf-8"), fmt="md")
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(lambda link: f"]({target(page, link[1], folder)}{link[2] or ''})", cell.source)
        if title := cell.metadata.pop("title", None):
            cell.source = f"%%writefile {title}\n{cell.source}"
    made.metadata["kernelspec"] = KERNEL
    return made


def target(page: Path, link: str, folder: Path) -> str:
    """Where a relative link of a page leads from a notebook in `folder`.

    Example: `../data.md` is `../../docs/data.md` in output/notebooks, `102_x.md` is `102_x.ipynb`.
    """
    path = (page.parent / link).resolve()
    return f"{path.stem}.ipynb" if path.parent == PAGES else Path(os.path.relpath(path, folder.resolve())).as_posix()


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted(PAGES.glob("*.md")):
        jupytext.write(notebook(page, folder), folder / f"{page.stem}.ipynb", fmt="ipynb")
        print(folder / f"{page.stem}.ipynb")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("output/notebooks"))
