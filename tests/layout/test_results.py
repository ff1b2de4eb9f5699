"""What is made from the recipes' folders is what is there."""

from tools.make_results import made


def test_pages_and_pictures_of_the_recipes_are_fresh() -> None:
    stale = [str(path) for path, text in made() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    assert stale == [], "run `python -m tools.make_results`"
