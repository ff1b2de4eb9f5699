"""Measures the tree of roll/: files, their sizes, imports, small files with one user, names and docstrings to mend.

Run it as `python tools/house.py`; docs/decisions/2026-11-27-house-measures.md has its figures.
"""

import ast
import re
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BANNED_NAMES = frozenset(
    [
        "told",
        "tell",
        "found",
        "given",
        "asked",
        "own",
        "left",
        "seen",
        "kept",
        "further",
        "lesson",
        "study",
        "words",
        "trees",
        "lane",
        "seat",
        "brought",
        "look",
    ]
)
SMALL = 80  # lines: a file that is not longer and has one user in its folder joins it, or has a reason


def product_files() -> list[Path]:
    return sorted(path for path in (ROOT / "roll").rglob("*.py") if path.stat().st_size)


def lines_of(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def import_lines(tree: ast.Module) -> int:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes if not _is_future(node))


def _is_future(node: ast.Import | ast.ImportFrom) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def users_of(files: list[Path]) -> dict[Path, set[Path]]:
    """Which files import each file."""
    by_name = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}
    users: dict[Path, set[Path]] = defaultdict(set)
    for path in files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                if (other := by_name.get(name)) is not None and other != path:
                    users[other].add(path)
    return users


def small_with_one_user(files: list[Path]) -> Iterator[str]:
    """Files of at most SMALL lines whose only user is in their folder, and which no dotted path names."""
    text = "\n".join(path.read_text("utf-8") for path in files)
    users = users_of(files)
    for path in files:
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        alone = len(users[path]) == 1 and next(iter(users[path])).parent == path.parent
        if alone and lines_of(path) <= SMALL and f'"{dotted}:' not in text:
            yield f"{path.relative_to(ROOT)} ({lines_of(path)} lines) <- {next(iter(users[path])).name}"


def banned_names(files: list[Path]) -> Counter[str]:
    """How often each banned word is a whole identifier."""
    counts: Counter[str] = Counter()
    for path in files:
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.NAME and token.string.lower() in BANNED_NAMES:
                    counts[token.string.lower()] += 1
    return counts


def comments(files: list[Path]) -> tuple[int, int]:
    """(on a line of their own, behind code)"""
    alone = behind = 0
    for path in files:
        for line in path.read_text("utf-8").splitlines():
            alone += bool(re.match(r"\s*# ", line))
            behind += bool(re.search(r"\S\s\s# ", line))
    return alone, behind


def main() -> None:
    files = product_files()
    sizes = [lines_of(path) for path in files]
    imports = sum(import_lines(ast.parse(path.read_text("utf-8"))) for path in files)
    entries = Counter(path.parent for path in files) + Counter(
        folder.parent for folder in {path.parent for path in files}
    )
    alone, behind = comments(files)
    small = list(small_with_one_user(files))
    write = sys.stdout.write
    write(f"files {len(files)}, lines {sum(sizes)}\n")
    write(f"lines of a file: median {statistics.median(sizes)}, mean {statistics.mean(sizes):.0f}, most {max(sizes)}\n")
    write(f"lines that import: {imports / sum(sizes):.1%}\n")
    write(f"files of at most 50 lines: {sum(n <= 50 for n in sizes)}, of at most 80: {sum(n <= 80 for n in sizes)}\n")
    write(f"comments on their own line: {alone}, behind code: {behind}\n")
    write("most entries in a folder: ")
    write(", ".join(f"{folder.relative_to(ROOT)} {count}" for folder, count in entries.most_common(4)) + "\n")
    write(f"small files with one user in their folder: {len(small)}\n")
    write("".join(f"  {line}\n" for line in small))
    write("words to avoid that are whole identifiers: ")
    write(", ".join(f"{word} {count}" for word, count in banned_names(files).most_common()) + "\n")


if __name__ == "__main__":
    main()
