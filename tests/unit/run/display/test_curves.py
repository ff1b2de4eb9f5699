import math
import sys

import pytest

from roll.rl.pipeline import VIEW
from roll.run.display.curves import binned_phases, draw_curves, smoothed

ROWS = [
    (step, {"rollout/reward_mean": step / 30, "val/reward_mean": 0.5, "time/rollout_s": 1.0, "time/other_s": 0.5})
    for step in range(30)
]


@pytest.mark.parametrize(
    "rows", [ROWS, ROWS[:1], [(0, {})], [(0, {"time/rollout_s": 0.0})]], ids=["run", "one", "none", "0 s"]
)
def test_the_picture_is_a_png_of_readable_size_without_pyplot(tmp_path, rows, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from PIL import Image

    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # cannot be imported, whatever another test has done
    path = draw_curves(rows, tmp_path / "new" / "curves.png", VIEW, "demo")
    assert path is not None
    with Image.open(path) as image:
        assert (image.format, image.size) == ("PNG", (1170, 1170))


def test_without_matplotlib_there_is_a_note_and_no_failure(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert draw_curves(ROWS, tmp_path / "curves.png", VIEW) is None
    assert "matplotlib is not installed" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_whatever_stands_in_names_and_rows_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    odd = {
        "val/reward_mean/$\\frac{$": math.inf,
        "time/$x^$_s": 1.0,
        "rollout/reward_mean": -math.inf,
    }
    rows = [*ROWS, (30, {**odd, "val/reward_mean": math.nan}), (31, {"val/reward_mean/$\\frac{$": 0.5})]
    assert draw_curves(rows, tmp_path / "curves.png", VIEW, "a $\\frac{ of \ud800") is not None


def test_what_cannot_be_drawn_ends_no_run(tmp_path, caplog):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    (tmp_path / "file").write_text("in the way")
    assert draw_curves(ROWS, tmp_path / "file" / "curves.png", VIEW) is None
    assert "curves.png is not drawn. " in caplog.text
    assert draw_curves([], tmp_path / "curves.png", VIEW) is None


def test_a_smoothed_curve_begins_at_its_first_value_and_hangs_on_nothing_that_comes_later():
    assert smoothed([(1, 0.0), (2, 3.0)], span=3) == [0.0, 2.0]
    noisy = [(step, float(step % 2)) for step in range(200)]
    assert smoothed(noisy)[-1] == pytest.approx(0.5, abs=0.06)
    assert smoothed(noisy)[:50] == smoothed(noisy[:50])
    assert smoothed([(1, 0.0), (101, 3.0)])[-1] == pytest.approx(3.0), "what is 100 steps back no longer counts"
    assert smoothed([]) == [] and smoothed([(7, 2.0)]) == [2.0]


def test_long_runs_are_averaged_in_bins_that_keep_the_total_time():
    rows = [(step, {"time/rollout_s": float(step), "time/other_s": 1.0}) for step in range(1000)]
    steps, seconds = binned_phases(rows)
    assert len(steps) == 200
    assert steps[:2] == [2.0, 7.0]
    assert list(seconds) == ["rollout", "other"]
    assert sum(seconds["rollout"]) * 5 == sum(range(1000))


def test_the_smallest_phases_are_drawn_as_other():
    rows = [(0, {f"time/phase{number}_s": float(number) for number in range(1, 13)})]
    _, seconds = binned_phases(rows)
    assert list(seconds) == [*(f"phase{number}" for number in range(12, 5, -1)), "other"]
    assert seconds["other"] == [1 + 2 + 3 + 4 + 5]
