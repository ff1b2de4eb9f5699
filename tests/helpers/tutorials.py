"""The tutorials of docs/tutorials, each as one program: its blocks as they stand on the page, in their order."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tests.helpers.pages import DOCS, Block, blocks

PAGES = tuple(sorted(path.stem for path in (DOCS / "tutorials").glob("*.md")))
_MARK = "\x1e"  # printed before each block


def page_blocks(name: str) -> list[Block]:
    return blocks(f"tutorials/{name}.md")


def program(name: str, with_commands: bool = True) -> str:
    """The page as a Python program, which marks where what a block prints begins. A block with a title is a file."""
    parts = []
    for number, block in enumerate(page_blocks(name)):
        mark = f"print({_MARK!r}, {number}, flush=True)\n"
        if block.title is not None:
            parts.append(f"{mark}import pathlib\npathlib.Path({block.title!r}).write_text({block.text!r})\n")
        elif block.language == "python":
            parts.append(mark + block.text)
        elif block.language == "bash" and with_commands:
            parts.append(f'{mark}import subprocess\nsubprocess.run(["bash", "-e", "-c", {block.text!r}], check=True)\n')
    return "\n\n".join(parts)


def run_page(name: str, folder: Path, python: str, environment: Mapping[str, str]) -> dict[int, list[str]]:
    """Runs the page in a process of its own in `folder`. Returns the lines that each block printed, by its place."""
    (folder / "page.py").write_text(program(name), encoding="utf-8")
    done = subprocess.run([python, "page.py"], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return printed(done.stdout)


def printed(output: str) -> dict[int, list[str]]:
    """Lines by block. Example: of "\\x1e 2\\nhello" they are {2: ["hello"]}"""
    parts = [part.splitlines() for part in output.split(_MARK)[1:]]
    return {int(lines[0]): lines[1:] for lines in parts}


def check_texts(name: str, lines: Mapping[int, Sequence[str]]) -> None:
    """Each line of a `text` block is one that the block before it printed."""
    for number, (before, block) in enumerate(pairwise(page_blocks(name))):
        if block.language == "text":
            said = lines[number]
            missing = [line for line in block.text.splitlines() if line not in said]
            assert before.language in ("python", "bash") and missing == [], f"{missing} of {name}:\n" + "\n".join(said)
