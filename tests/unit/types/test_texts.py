"""Texts come back as they were stored, row by row."""

import pytest

from roll.types.group_codec import TextTable
from roll.types.texts import RowTexts, Turn


@pytest.mark.parametrize("turns", [(), (Turn("seen", "said", None, 0.5, {"valid": 1.0}),)])
def test_every_row_comes_back_as_it_was_stored(turns: tuple[Turn, ...]) -> None:
    rows = [
        RowTexts("one", "<s>one</s>"),
        RowTexts("", "", turns),
        RowTexts("zwölf \N{GRINNING FACE}\n", "half a pair \ud800"),
    ]
    table = TextTable.of(rows)
    assert len(table) == 3
    assert [table[i] for i in (2, 0, 1)] == [rows[i] for i in (2, 0, 1)]


def test_no_rows_make_an_empty_table() -> None:
    assert len(TextTable.of([])) == 0
