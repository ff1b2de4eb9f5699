"""The generated pages are those in docs/."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from roll.configs.load.yaml_file import read_yaml
from tools.config_reference import main, reference, untranslated, unused

DOCS = Path(__file__).parents[3] / "docs"
PAGE, CHINESE = DOCS / "config_reference.md", DOCS / "config_reference.zh.md"
CATALOGUE = DOCS / "site" / "zh.yaml"


def test_the_configuration_reference_is_fresh() -> None:
    hint = "stale: run `python -m tools.config_reference > docs/config_reference.md`"
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


def test_the_chinese_reference_is_fresh_where_it_is_translated() -> None:
    """Who adds a key need not write Chinese: what has no translation may be missing on the page. Whatever has one
    stands there as the settings have it, and no key that is gone does."""
    hint = "stale: run `python -m tools.config_reference --catalogue docs/site/zh.yaml > docs/config_reference.zh.md`"
    catalogue, shown = read_yaml(CATALOGUE), CHINESE.read_text(encoding="utf-8").splitlines()
    lacking = reference({**catalogue, **dict.fromkeys(untranslated(catalogue), LACKING)})
    assert [line for line in lacking.splitlines() if LACKING not in line and line not in shown] == [], hint
    assert keys_of(shown) <= keys_of(reference().splitlines()), hint


LACKING = "(no translation)"


def keys_of(lines: Iterable[str]) -> set[str]:
    return {line.split("|")[1] for line in lines if line.startswith("| `")}


def test_a_text_without_a_translation_stays_english_and_is_listed() -> None:
    catalogue = dict(read_yaml(CATALOGUE))
    text = "Seed of all random numbers of the run."
    assert catalogue.pop(text) in reference(read_yaml(CATALOGUE))
    assert f"| {text} |" in reference(catalogue)
    assert text in untranslated(catalogue) and text not in unused(catalogue)
    assert unused({**catalogue, "Gone.": ""})[-1] == "Gone."
    assert unused({}) == [] and text in untranslated({})


def test_the_command_writes_the_page_and_lists_what_lacks_a_translation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "some.yaml"
    small.write_text('"| key | type | default | meaning |": "| k | t | d | m |"\n"Gone.": "-"\n', encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["reference", "--catalogue", str(small)])
    main()
    written = capsys.readouterr()
    assert "| k | t | d | m |" in written.out and "Seed of all random numbers of the run." in written.out
    assert f"{small}: no translation: Seed of all random numbers of the run.\n" in written.err
    assert written.err.endswith(f"{small}: no place on the page: Gone.\n")
