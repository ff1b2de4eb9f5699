"""The site of docs/, built as `make docs` builds it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.pages import DOCS

ELSEWHERE = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\" >]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: a link, an anchor or a page of the navigation that is not there ends it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(DOCS / "site" / "mkdocs.yml")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([*command, "-d", str(folder)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_each_page_is_in_the_site_in_its_languages(site: Path) -> None:
    pages = [str(page.relative_to(DOCS).with_suffix("")) for page in (*DOCS.glob("*.md"), *DOCS.glob("[rt]*/*.md"))]
    wanted = {f"zh/{name.removesuffix('.zh')}.html" for name in pages}
    wanted |= {f"{name}.html" for name in pages if not name.endswith(".zh")}
    assert sorted(name for name in wanted if not (site / name).is_file()) == []
    assert "每一步之后把新权重送给采样引擎" in (site / "zh" / "index.html").read_text(encoding="utf-8")


def test_nothing_in_the_site_is_fetched_from_elsewhere(site: Path) -> None:
    pages = (page.read_text(encoding="utf-8") for page in site.rglob("*.html"))
    fetched = {found for page in pages for found in ELSEWHERE.findall(page)}
    assert fetched == set()
    assert ELSEWHERE.findall('<script src="https://a.example/x.js">') == ["https://a.example/x.js"]


def test_the_search_finds_a_key_by_its_name(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = [entry["location"] for entry in index["docs"] if "weight_sync_route" in entry["text"]]
    assert any(place.startswith("reference/") for place in places)
