"""Sizes that keep the tree one that a person can hold (docs/decisions/2026-11-26-rooms.md); tools/house.py measures."""

import ast
from collections import Counter
from statistics import median

from tests.layout.source import REPOSITORY
from tools.house import import_lines, lines_of, product_files, small_with_one_user

LONGEST, MEDIAN, IMPORTS, ENTRIES = 600, (120, 200), 0.076, 22  # a share of imports rises as other lines go

APART = {
    "roll/distributed/executor/processes/worker_logs.py": "read by a program that starts without the library's path",
    "roll/distributed/strategy/megatron/score.py": "a strategy is found by its file",
    "roll/features/operators/choice.py": "reads rows, which checks of operators do not",
    "roll/pipeline/dpo/dpo_loss.py": "the arithmetic of DPO apart from its loop",
    "roll/rl/user_code_trials.py": "tries users' code with torch, which user_code.py is read without",
}
"""Small files with one user in their folder, and why each stays apart."""


def test_no_file_is_longer_than_a_person_can_hold() -> None:
    assert [str(path.relative_to(REPOSITORY)) for path in product_files() if lines_of(path) > LONGEST] == []


def test_files_hold_a_subject_each() -> None:
    low, high = MEDIAN
    assert low <= median(lines_of(path) for path in product_files()) <= high


def test_little_of_the_code_is_imports() -> None:
    files = product_files()
    imports = sum(import_lines(ast.parse(path.read_text("utf-8"))) for path in files)
    assert imports <= IMPORTS * sum(lines_of(path) for path in files)


def test_a_folder_can_be_read_at_a_glance() -> None:
    files = product_files()
    folders = {path.parent for path in files}
    entries = Counter(path.parent for path in files) + Counter(folder.parent for folder in folders)
    assert {str(folder.relative_to(REPOSITORY)): n for folder, n in entries.items() if n > ENTRIES} == {}


def test_a_small_file_with_one_user_joins_it_or_has_a_reason() -> None:
    assert {line.split(" ")[0] for line in small_with_one_user(product_files())} == set(APART)
