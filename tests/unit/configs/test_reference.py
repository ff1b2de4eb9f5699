"""The generated page is the one in docs/."""

from pathlib import Path

from roll.configs.reference import reference

PAGE = Path(__file__).parents[3] / "docs" / "config_reference.md"


def test_the_configuration_reference_is_fresh() -> None:
    hint = "stale: run `python -m roll.configs.reference > docs/config_reference.md`"
    assert PAGE.read_text(encoding="utf-8") == reference(), hint


def test_the_reference_shows_types_defaults_and_marks() -> None:
    page = reference()
    assert "| `rollout_batch_size` | whole number | 128 |" in page
    assert "| `strategy_name` | text | required |" in page
    assert "| `num_beams` | whole number | 1 |" in page and "*Not implemented.*" in page
    assert "*No effect: ROLL declares this key and never reads it.*" in page
