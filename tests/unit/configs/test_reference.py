"""The generated pages are those in docs/."""

from pathlib import Path
from typing import cast

from roll.configs.base import Settings
from roll.configs.load.yaml_file import read_yaml
from roll.configs.reference import HEAD, HEADS, INERT, SECTIONS, reference
from roll.utils.imports import resolve

DOCS = Path(__file__).parents[3] / "docs"
PAGE, CHINESE = DOCS / "config_reference.md", DOCS / "config_reference.zh.md"
CATALOGUE = DOCS / "site" / "zh.yaml"
MOST_WITHOUT_CHINESE = 333


def meanings() -> set[str]:
    """The help texts of all keys that do something."""
    sections = (cast("type[Settings]", resolve(path)) for _, path in SECTIONS)
    return {info.description for cls in sections for info in cls.model_fields.values() if info.description}


def test_the_configuration_reference_is_fresh() -> None:
    hint = "stale: run `python -m roll.configs.reference > docs/config_reference.md`"
    assert PAGE.read_text(encoding="utf-8") == reference(), hint


def test_the_reference_shows_types_defaults_and_marks() -> None:
    page = reference()
    assert "| `rollout_batch_size` | whole number | 128 |" in page
    assert "| `strategy_name` | text | required |" in page
    assert "| `num_beams` | whole number | 1 |" in page and "*Not implemented.*" in page
    assert "*No effect: ROLL declares this key and never reads it.*" in page


def test_the_chinese_reference_is_fresh() -> None:
    hint = "stale: run `python -m roll.configs.reference --catalogue docs/site/zh.yaml > docs/config_reference.zh.md`"
    assert CHINESE.read_text(encoding="utf-8") == reference(read_yaml(CATALOGUE)), hint


def test_every_translation_is_of_a_text_that_is_there() -> None:
    assert [text for text in read_yaml(CATALOGUE) if text not in {HEAD, HEADS[0], INERT} | meanings()] == []


def test_no_more_keys_than_before_are_without_a_chinese_text() -> None:
    """The bound may only fall: who adds a key translates it, or another one."""
    left = len(meanings() - read_yaml(CATALOGUE).keys())
    assert left <= MOST_WITHOUT_CHINESE
    assert left > MOST_WITHOUT_CHINESE - 10, "lower the bound to what is left"
