"""Pictures of recorded prompts: small copies in a page, and where they are in the text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from roll.report.command import render_rollout
from roll.report.samples import thumbnail
from roll.run.records.replay import Recorded, RecordedPicture


def picture(path: Path, form: str = "file") -> RecordedPicture:
    return RecordedPicture(form=form, place=str(path), where="rows.jsonl:3, column images[0]")


def record(*pictures: RecordedPicture) -> Recorded:
    return Recorded(
        step=1, domain="count", group_id=0, prompt_text="how many?", response_text="4", reward=1.0,
        finish_reason="stop", pictures=list(pictures),
    )  # fmt: skip


@pytest.fixture
def red(tmp_path: Path) -> Path:
    Image.fromarray(np.full((400, 800, 3), (255, 0, 0), np.uint8)).save(tmp_path / "red.png")
    return tmp_path / "red.png"


def test_a_page_of_an_attempt_shows_what_it_saw(red: Path) -> None:
    page = render_rollout(record(picture(red)))
    assert page.count("data:image/webp;base64,") == 1 and len(page) < 20_000


def test_what_is_gone_or_elsewhere_is_named_and_never_fetched(tmp_path: Path) -> None:
    gone = thumbnail(picture(tmp_path / "gone.png"))
    assert gone.image is None and "rows.jsonl:3, column images[0]" in gone.caption
    elsewhere = thumbnail(RecordedPicture(form="address", place="https://example.org/a.png", where="rows.jsonl:4"))
    assert elsewhere.image is None and elsewhere.caption == "rows.jsonl:4: not kept with the rollout"
