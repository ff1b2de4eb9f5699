"""The pages of docs/ hold what they promise: what they show is run by a test, and their lines end where ours do."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

from roll.envs.table import ENVIRONMENTS, TOOLS
from roll.rewards.config import BUILTINS
from tests.helpers.pages import DOCS
from tests.layout.source import REPOSITORY


def test_a_test_runs_what_each_page_on_adding_something_shows() -> None:
    pages = sorted(path.name for path in DOCS.glob("adding_*.md"))
    tests = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert pages and [page for page in pages if f'snippets("{page}", "python")' not in tests] == []


def named_files(page: str) -> Iterator[str]:
    """Files of the repository that a page names between backticks: `folder/file.py`, or a test's file by itself. `...`
    in a path stands for folders."""
    for quoted in re.findall(r"`([^`\n]+)`", page):
        for path in re.findall(
            r"(?<![\w./$<])(?:\.\./)?((?:[\w.-]+/)+[\w-]+\.(?:py|md)|test_\w+\.py)(?![\w/])", quoted
        ):
            yield path.replace("/.../", "/*/")


def test_files_that_pages_name_are_there() -> None:
    folders = ("roll", "docs", "reports", "examples", "benchmarks", "tools", "tests", "requirements")
    there = [f"/{p.relative_to(REPOSITORY)}" for folder in folders for p in (REPOSITORY / folder).rglob("*.*")]
    pages = [*DOCS.glob("*.md"), *pages_outside_of_docs()]
    named = {(page.name, path) for page in pages for path in named_files(page.read_text(encoding="utf-8"))}
    assert len(named) > 60, "the search itself finds paths"
    assert sorted(item for item in named if not any(fnmatchcase(path, f"*/{item[1]}") for path in there)) == []
    page = "`strategy/vllm.py, a/b.py` `unit/.../test_x.py` `test_y.py` `../other/README.md` `mine.py` `/tmp/a.py`"
    found = ["strategy/vllm.py", "a/b.py", "unit/*/test_x.py", "test_y.py", "other/README.md"]
    assert [*named_files(page)] == found
    # Those of docs/ are checked where the site is built.
    pages = pages_outside_of_docs()
    links = {(page, link) for page in pages for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))}
    dead = [(page.name, link) for page, link in links if "://" not in link and not (page.parent / link).exists()]
    assert len(links) > 40 and dead == []


def test_the_pages_name_every_reward_environment_and_tool() -> None:
    for page, names in (("rewards.md", BUILTINS), ("adding_an_env.md", {**ENVIRONMENTS, **TOOLS})):
        text = (DOCS / page).read_text("utf-8")
        missing = [name for name in names if f"`{name}`" not in text and not re.search(rf"_(id|type): {name}\b", text)]
        assert missing == [], f"docs/{page} has no row on them"


def test_every_page_is_in_navigation_and_index() -> None:
    """A new page has a line in docs/site/mkdocs.yml; one in Chinese stands under its English name."""
    settings = yaml.safe_load((DOCS / "site" / "mkdocs.yml").read_text(encoding="utf-8"))
    named = [page for part in settings["nav"] for pages in part.values() for page in pages]
    assert sorted(named) == pages_of_the_site()
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = {*pages_of_the_site()} - {"index.md"}
    assert sorted(pages - set(re.findall(r"\]\(([\w/]+\.md)\)", index))) == []


def pages_of_the_site() -> list[str]:
    """Their paths below docs/, in English."""
    pages = [*DOCS.glob("*.md"), *DOCS.glob("tutorials/*.md"), *DOCS.glob("reference/*.md")]
    return sorted(str(page.relative_to(DOCS)) for page in pages if not page.name.endswith(".zh.md"))


def pages_outside_of_docs() -> list[Path]:
    pages = (REPOSITORY.glob("*.md"), REPOSITORY.glob("reports/*.md"), (REPOSITORY / "examples").rglob("*.md"))
    return [page for found in pages for page in found]


def test_what_a_reader_meets_stays_short() -> None:
    """Records and long tables belong to reports/. These bounds may only fall."""
    readme, changelog = (
        (REPOSITORY / name).read_text(encoding="utf-8").splitlines() for name in ("README.md", "CHANGELOG.md")
    )
    assert len(readme) <= 150
    assert len(changelog) <= 60
    pages = [page for page in DOCS.glob("*.md") if not page.name.startswith("config_reference")]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= 63_000
