"""detection against areas that are counted cell by cell, and by hand."""

import itertools
import json
import random
from fractions import Fraction
from typing import Any

import pytest

from roll.rewards.base import RewardInput
from roll.rewards.detection import Box, Detection, boxes_in, intersection_over_union, matches

CAT, DOG = {"bbox_2d": [0, 0, 10, 10], "label": "cat"}, {"bbox_2d": [20, 20, 30, 30], "label": "dog"}
TRUTH = [CAT, DOG]
CLOSE = {"bbox_2d": [0, 0, 10, 8], "label": "cat"}  # .8 of the cat


def cells(box: Box) -> set[tuple[int, int]]:
    return set(itertools.product(range(int(box.x1), int(box.x2)), range(int(box.y1), int(box.y2))))


def test_boxes_are_compared_by_the_cells_they_cover() -> None:
    draw = random.Random(1)
    for _ in range(300):
        one, other = (Box("a", *corners(draw)) for _ in range(2))
        both, either = cells(one) & cells(other), cells(one) | cells(other)
        expected = Fraction(len(both), len(either)) if either else Fraction(0)
        assert intersection_over_union(one, other) == pytest.approx(float(expected), abs=1e-15)
        assert intersection_over_union(one, other) == intersection_over_union(other, one)
    assert judged("[]", "[]") == 1 and judged("<answer>[]</answer>", []) == 1
    assert judged(GOOD, []) == pytest.approx(0.1 / 1.1) and judged("nothing", []) == 0
    assert boxes_in(CAT) == [Box("cat", 0, 0, 10, 10)]
    metrics = Detection(iou_threshold=0.5)(RewardInput("", json.dumps([CLOSE, DOG]), TRUTH)).metrics
    assert metrics == {"format": 1, "success": 1, "iou": pytest.approx(0.9), "f_score": 1}


def corners(draw: random.Random) -> tuple[int, int, int, int]:
    x1, x2 = sorted(draw.choices(range(8), k=2))
    y1, y2 = sorted(draw.choices(range(8), k=2))
    return x1, y1, x2, y2


def greedy(reference: list[Box], found: list[Box], threshold: float) -> list[float]:
    """Slowly: again and again the best pair of those that are left."""
    left, right, overlaps = list(reference), list(found), []
    while True:
        pairs = [(intersection_over_union(a, b), a, b) for a in left for b in right if a.label == b.label]
        pairs = [pair for pair in pairs if pair[0] >= threshold]
        if not pairs:
            return overlaps
        overlap, a, b = max(pairs, key=lambda pair: pair[0])
        overlaps.append(overlap)
        left.remove(a)
        right.remove(b)


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.5, 0.75])
def test_the_score_is_that_of_a_slow_matching_at_the_threshold(threshold: float) -> None:
    draw = random.Random(7)
    for _ in range(60):
        boxes = [[Box(draw.choice("ab"), *corners(draw)) for _ in range(draw.randint(1, 6))] for _ in range(2)]
        reference, found = ([box for box in side if box.area] for side in boxes)
        if not reference:
            continue
        expected = greedy(reference, found, threshold)
        assert sorted(o for o in matches(reference, found) if o >= threshold) == pytest.approx(sorted(expected))
        score = judged(written(found), written(reference), iou_threshold=threshold, format_weight=0)
        accuracy = sum(expected) / len(reference) + 2 * len(expected) / (len(reference) + len(found))
        assert score == pytest.approx(accuracy / 2, abs=1e-12)


def written(boxes: list[Box]) -> str:
    return json.dumps([{"bbox_2d": [b.x1, b.y1, b.x2, b.y2], "label": b.label} for b in boxes])


def judged(text: str, truth: Any = TRUTH, **settings: Any) -> float:
    return Detection(**settings)(RewardInput("", text, truth)).score


@pytest.mark.parametrize(
    ("answer", "threshold", "accuracy"),
    [
        (TRUTH, "average", 1),
        ([CLOSE], 0.5, 0.5 * 0.8 / 2 + 0.5 * 2 / 3),
        ([CLOSE, DOG], 0.5, 0.5 * 0.9 + 0.5),
        ([CLOSE, DOG], 0.85, 0.5 * 0.5 + 0.5 * 0.5),
        ([CLOSE, DOG], "average", (7 * (0.45 + 0.5) + 4 * 0.5) / 11),
        ([CAT, CAT], 0.5, 0.5 / 2 + 0.5 * 2 / 4),
        ([*TRUTH, *[{"bbox_2d": [0, 0, 1, 1], "label": "cat"}] * 8], 0.5, 0.5 + 0.5 * 4 / 12),
        ([{**CAT, "label": "dog"}, {**DOG, "label": "cat"}], 0.5, 0),
        ([{**CAT, "label": " CAT "}, DOG], 0.5, 1),
        ([{**CAT, "confidence": 0.3}, DOG], 0.5, 1),
        ([{"box": CAT["bbox_2d"], "category": "cat"}, DOG], 0.5, 1),
        ([{"bbox_2d": [0, 0, 10], "label": "cat"}, DOG], 0.5, 0.5 / 2 + 0.5 * 2 / 4),
        ([{"bbox_2d": ["0", 0, 10, 10], "label": "cat"}, DOG], 0.5, 0.5 / 2 + 0.5 * 2 / 4),
        (["cat", DOG], 0.5, 0.5 / 2 + 0.5 * 2 / 4),
        ([{"bbox_2d": [100, 100, 110, 110], "label": "cat"}], 0.5, 0),
    ],
)
def test_lists_of_boxes_by_hand(answer: list[Any], threshold: Any, accuracy: float) -> None:
    text = json.dumps(answer)
    assert judged(text, iou_threshold=threshold, format_weight=0) == pytest.approx(accuracy, abs=1e-12)
    has_box = any(isinstance(item, dict) for item in answer)
    assert judged(text, iou_threshold=threshold) == pytest.approx((accuracy + 0.1 * has_box) / 1.1, abs=1e-12)


GOOD = json.dumps(TRUTH)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"<answer>{GOOD}</answer>",
        f"Here they are:\n```json\n{GOOD}\n```\nThat is all.",
        f"I see two: {GOOD}.",
        str(TRUTH),  # Python's quotes
        f"<think>[]</think>{GOOD}",
        f"<answer>[]</answer> no, <answer>{GOOD}</answer>",
        f"```json\n[]\n```\n```json\n{GOOD}\n```",
    ],
)
def test_a_list_is_found_where_answers_have_it(text: str) -> None:
    assert judged(text) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a cat and a dog",
        "{}",
        f"<think>{GOOD}</think>",
        "[" * 100_000 + "]" * 100_000,
        json.dumps([CAT] * 501),
        "[]",
        '[{"bbox_2d": [NaN, 0, 10, 10], "label": "cat"}]',
        f'[{{"bbox_2d": [0, 0, {"9" * 5000}, 10], "label": "cat"}}]',
        '[{"bbox_2d": [true, true, true, true], "label": "cat"}]',
        "[__import__('os').system('true')]",
    ],
)
def test_what_holds_no_list_of_boxes_scores_0(text: str) -> None:
    assert judged(text) == 0


@pytest.mark.parametrize("truth", [TRUTH, tuple(TRUTH), GOOD, f"<answer>{GOOD}</answer>", str(TRUTH)])
def test_the_reference_is_data_or_text(truth: Any) -> None:
    assert judged(GOOD, truth) == 1


@pytest.mark.parametrize("truth", [None, 5, "a cat", [1], [{"bbox_2d": [0, 0, 1], "label": "cat"}], "[{}]"])
def test_a_reference_that_is_no_list_of_boxes_is_a_failure(truth: Any) -> None:
    with pytest.raises(ValueError, match="is not a list of boxes with labels"):
        judged(GOOD, truth)


@pytest.mark.parametrize(
    "settings", [{"iou_threshold": 0}, {"iou_threshold": 1.5}, {"iou_weight": 2}, {"format_weight": -1}]
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Detection(**settings)


def test_a_reference_in_pixels_of_the_file_is_scaled_to_what_the_model_saw() -> None:
    """A picture of 100 x 50 (width, height) that the model saw as 56 x 28: half a box of the file is none of it."""
    seen = json.dumps([{"bbox_2d": [5.6, 5.6, 28, 14], "label": "cat"}])
    truth = [{"bbox_2d": [10, 10, 50, 25], "label": "cat"}]
    sample = RewardInput("", seen, truth, picture_scales=((0.56, 0.56),))
    assert Detection(reference_pixels="of_file")(sample).score == pytest.approx(1.0)
    assert Detection()(sample).metrics["iou"] < 0.5
    stretched = RewardInput("", seen, [{"bbox_2d": [10, 5.6, 50, 14], "label": "cat"}], picture_scales=((1.0, 0.56),))
    assert Detection(reference_pixels="of_file")(stretched).score == pytest.approx(1.0)
    with pytest.raises(ValueError, match="this one shows none"):
        Detection(reference_pixels="of_file")(RewardInput("", seen, truth))
    with pytest.raises(ValueError, match="must be as_shown or of_file"):
        Detection(reference_pixels="mine")  # type: ignore[arg-type]
