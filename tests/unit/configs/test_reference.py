"""The generated pages are those in docs/."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from roll.configs.load.yaml_file import read_yaml
from tools.config_reference import main, reference, untranslated, unused

DOCS = Path(__file__).parents[3] / "docs"
CATALOGUE = DOCS / "site" / "zh.yaml"


def written(ending: str = "") -> dict[str, str]:
    """The pages in docs/, as `reference` names them."""
    folder = DOCS / "reference"
    names = {path.name.partition(".")[0] for path in folder.glob("*.md")}
    paths = {"": DOCS / f"config_reference{ending}.md"} | {name: folder / f"{name}{ending}.md" for name in names}
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items()}


def test_the_configuration_reference_is_fresh() -> None:
    hint = "stale: run `python -m tools.config_reference > docs/config_reference.md`"
    assert written() == reference(), hint


def test_the_reference_shows_types_defaults_and_marks() -> None:
    page = "".join(reference().values())
    assert "| `rollout_batch_size` | whole number | 128 |" in page
    assert "| `strategy_name` | text | required |" in page
    assert "| `num_beams` | whole number | 1 |" in page and "*Not implemented.*" in page
    assert "*No effect: ROLL declares this key and never reads it.*" in page


def test_a_key_that_means_something_else_below_the_class_that_has_it_is_shown_there_too() -> None:
    of_teachers = reference()["roles"].split("## teacher, teachers.NAME", 1)[1].split("## ", 1)[0]
    assert "| `tag_included` | list of text | [] | In `teachers`: the domains that it teaches" in of_teachers


def test_the_chinese_reference_is_fresh_where_it_is_translated() -> None:
    """Who adds a key need not write Chinese: what has no translation may be missing on the page. Whatever has one
    stands there as the settings have it, and no key that is gone does."""
    hint = "stale: run `python -m tools.config_reference --catalogue docs/site/zh.yaml > docs/config_reference.zh.md`"
    catalogue = read_yaml(CATALOGUE)
    lacking = reference({**catalogue, **dict.fromkeys(untranslated(catalogue), LACKING)})
    for name, page in written(".zh").items():
        shown = page.splitlines()
        assert [line for line in lacking[name].splitlines() if LACKING not in line and line not in shown] == [], hint
        assert keys_of(shown) <= keys_of(reference()[name].splitlines()), hint


LACKING = "(no translation)"


def keys_of(lines: Iterable[str]) -> set[str]:
    return {line.split("|")[1] for line in lines if line.startswith("| `")}


def test_a_text_without_a_translation_stays_english_and_is_listed() -> None:
    catalogue = dict(read_yaml(CATALOGUE))
    text = "Seed of all random numbers of the run."
    assert catalogue.pop(text) in reference(read_yaml(CATALOGUE))["run"]
    assert f"| {text} |" in reference(catalogue)["run"]
    assert text in untranslated(catalogue) and text not in unused(catalogue)
    assert unused({**catalogue, "Gone.": ""})[-1] == "Gone."
    assert unused({}) == [] and text in untranslated({})


def test_the_command_writes_the_page_and_lists_what_lacks_a_translation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "some.yaml"
    small.write_text('"| key | type | default | meaning |": "| k | t | d | m |"\n"Gone.": "-"\n', encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["reference", "--catalogue", str(small), "--folder", str(tmp_path)])
    main()
    printed, page = capsys.readouterr(), (tmp_path / "run.zh.md").read_text(encoding="utf-8")
    assert "(reference/run.md#top-level)" in printed.out
    assert "| k | t | d | m |" in page and "Seed of all random numbers of the run." in page
    assert f"{small}: no translation: Seed of all random numbers of the run.\n" in printed.err
    assert printed.err.endswith(f"{small}: no place on the page: Gone.\n")
