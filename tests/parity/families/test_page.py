"""reports/models.md against the types that are tried, and what the plan says of them."""

from pathlib import Path

import pytest

from tests.parity.families import page
from tests.parity.families.test_numbers import ALONE


def test_the_page_has_a_row_for_every_type_with_what_the_plan_refuses_and_figures_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures that tests of this process measured are left out: they depend on the machine."""
    monkeypatch.setattr(page, "_measured", {})
    rows = page.read(page.PAGE.read_text(encoding="utf-8"))
    assert rows == page.rows(ALONE, rows, tmp_path), "pytest tests/parity/families --proof -k TYPE"
    assert [kind for kind, row in rows.items() if page.NOT_RUN in row] == []
    assert all("e-" in rows[kind][0] for kind in rows)


def test_a_page_keeps_its_text_and_its_figures() -> None:
    rows = {"a": ("1e-6", "refused: sinks", "2e-6", "3e-6", "4e-6", "untried", "untried", "refused: no family")}
    text = page.write(f"Text.\n\n{page.HEAD}\nold\n", rows)
    assert text.startswith(f"Text.\n\n{page.HEAD}\n|---|") and page.read(text) == rows
    assert page.write(text, page.read(text)) == text


def test_a_figure_takes_the_place_of_a_refusal_and_the_other_way_round() -> None:
    assert page.cells("new", {}, {"padded": "1e-6", "packed": "refused: sinks"})[:6] == (
        "1e-6",
        *["not run"] * 4,
        "untried",
    )
    assert page.cells("new", {"padded": "refused: x"}, {"padded": "1e-6"})[0] == "refused: x"
