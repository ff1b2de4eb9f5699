"""The generated pages are those in docs/."""

from pathlib import Path

from roll.configs.load.yaml_file import read_yaml
from roll.configs.reference import page, reference

DOCS = Path(__file__).parents[3] / "docs"
PAGE, CHINESE = DOCS / "config_reference.md", DOCS / "config_reference.zh.md"
CATALOGUE = DOCS / "site" / "zh.yaml"


def test_the_configuration_reference_is_fresh() -> None:
    hint = "stale: run `python -m roll.configs.reference > docs/config_reference.md`"
    assert PAGE.read_text(encoding="utf-8") == reference(), hint


def test_the_reference_shows_types_defaults_and_marks() -> None:
    page = reference()
    assert "| `rollout_batch_size` | whole number | 128 |" in page
    assert "| `strategy_name` | text | required |" in page
    assert "| `num_beams` | whole number | 1 |" in page and "*Not implemented.*" in page
    assert "*No effect: ROLL declares this key and never reads it.*" in page


def test_a_key_that_means_something_else_below_the_class_that_has_it_is_shown_there_too() -> None:
    of_teachers = reference().split("## teacher, teachers.NAME", 1)[1].split("## ", 1)[0]
    assert "| `tag_included` | list of text | [] | In `teachers`: the domains that it teaches" in of_teachers


def test_the_chinese_reference_is_fresh() -> None:
    hint = "stale: run `python -m roll.configs.reference --catalogue docs/site/zh.yaml > docs/config_reference.zh.md`"
    assert CHINESE.read_text(encoding="utf-8") == reference(read_yaml(CATALOGUE)), hint


def test_every_text_of_the_page_is_in_the_catalogue_and_no_other() -> None:
    """Who adds a key, or changes what it says of itself, says it in Chinese, too."""
    asked: set[str] = set()

    def say(text: str) -> str:
        asked.add(text)
        return text

    assert page(say) == reference()
    assert asked == read_yaml(CATALOGUE).keys()
