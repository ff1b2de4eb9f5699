"""Write the tutorials of docs/tutorials as notebooks: `make notebooks`, or `python tools/notebooks.py FOLDER`.

The pages are the source. Blocks of Python are cells, so are those of bash, and one with a title writes the file of that
name; everything else is text.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jupytext

PAGES = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook(page: Path) -> Any:
    """The page as a notebook of nbformat, without outputs."""
    made = jupytext.reads(page.read_text(encoding="utf-8"), fmt="md")
    for cell in made.cells:
        if title := cell.metadata.pop("title", None):
            cell.source = f"%%writefile {title}\n{cell.source}"
    made.metadata["kernelspec"] = KERNEL
    return made


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted(PAGES.glob("*.md")):
        jupytext.write(notebook(page), folder / f"{page.stem}.ipynb", fmt="ipynb")
        print(folder / f"{page.stem}.ipynb")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("output/notebooks"))
