"""The pages of docs/ hold what they promise: what they show is run by a test, and their lines end where ours do."""

from tests.helpers.pages import DOCS
from tests.layout.source import REPOSITORY


def test_a_test_runs_what_each_page_on_adding_something_shows() -> None:
    pages = sorted(path.name for path in DOCS.glob("adding_*.md"))
    tests = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert pages and [page for page in pages if f'snippets("{page}", "python")' not in tests] == []
