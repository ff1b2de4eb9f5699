"""`detection`: are the boxes and labels that an answer lists those of the reference?"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from roll.rewards.base import RewardInput, RewardResult, checks_rows, requires
from roll.utils.answers.final_answer import last_tagged
from roll.utils.truths import as_data

THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99)
BOX_KEYS, LABEL_KEYS = ("bbox_2d", "bbox", "box"), ("label", "category", "name")
FENCED = re.compile(r"```(?:json|python)?\s*\n?(.*?)```", re.DOTALL | re.IGNORECASE)
MAX_BOXES = 500  # more are no answer, and matching them would only take time


@dataclass(frozen=True)
class Box:
    label: str
    x1: float
    y1: float
    x2: float
    y2: float

    def scaled(self, down: float, across: float) -> Box:
        return Box(self.label, self.x1 * across, self.y1 * down, self.x2 * across, self.y2 * down)

    @property
    def area(self) -> float:
        return (self.x2 - self.x1) * (self.y2 - self.y1)


def problem_of(row: Mapping[str, Any]) -> str | None:
    truth = boxes_in(row.get("ground_truth"))
    is_valid = truth is not None and None not in truth
    return (
        None if is_valid else f"its ground truth is not a list of boxes with labels: {row.get('ground_truth')!r:.200}"
    )


@requires("ground_truth")
@checks_rows(problem_of)
class Detection:
    """Intersection over union of boxes, and F-score of labelled boxes.

    An answer is a JSON list of `{"bbox_2d": [x1, y1, x2, y2], "label": "cat"}`, in the last `<answer>` after thinking,
    else in the last code block, else all of the response; the ground truth is one as well, as text or as data. Boxes
    are matched one to one, best overlap first, where labels are equal (without case) and the overlap reaches the
    threshold. At one threshold, with n reference boxes, p of the answer and m matches,

        accuracy = iou_weight * (sum of the matches' overlap) / n + (1 - iou_weight) * 2 m / (n + p)

    and `iou_threshold: average` is the mean over .5, .55 ... .95, .99. What is listed and is no box counts in p. The
    score is (accuracy + format_weight * format) / (1 + format_weight); the format is right if there is a list of boxes.
    Where the reference is empty, so must be the answer.

    `reference_pixels` says in which pixels the reference is: as_shown, in those of the answer, whatever they are;
    of_file, in those of the row's picture before it was resized for the model (of several, the first), so that the
    reference is scaled to what the model saw.

    Example: n = 2, p = 2, one match of overlap .8 at threshold .5: accuracy .5 * .4 + .5 * .5 = .45.
    """

    def __init__(
        self,
        iou_threshold: float | Literal["average"] = "average",
        iou_weight: float = 0.5,
        format_weight: float = 0.1,
        reference_pixels: Literal["as_shown", "of_file"] = "as_shown",
    ):
        if iou_threshold != "average" and not 0 < float(iou_threshold) <= 1:
            raise ValueError(f"iou_threshold: {iou_threshold!r} must be average, or above 0 and at most 1")
        if not 0 <= iou_weight <= 1 or format_weight < 0:
            raise ValueError(f"iou_weight: {iou_weight} must be from 0 to 1, format_weight: {format_weight} from 0 on")
        if reference_pixels not in ("as_shown", "of_file"):
            raise ValueError(f"reference_pixels: {reference_pixels!r} must be as_shown or of_file")
        self._is_of_file = reference_pixels == "of_file"
        self._thresholds = THRESHOLDS if iou_threshold == "average" else (float(iou_threshold),)
        self._iou_weight = iou_weight
        self._format_weight = format_weight

    def __call__(self, sample: RewardInput) -> RewardResult:
        if problem := problem_of({"ground_truth": sample.ground_truth}):
            raise ValueError(problem)
        truth = boxes_in(sample.ground_truth) or []
        reference = [box for box in truth if box is not None]
        if self._is_of_file:
            if not sample.picture_scales:
                raise ValueError("reference_pixels: of_file needs rows that show pictures, and this one shows none")
            reference = [box.scaled(*sample.picture_scales[0]) for box in reference]
        boxes = boxes_in(listed(sample.answer))
        if boxes is None or len(boxes) > MAX_BOXES:
            return RewardResult(0.0, {"format": 0.0, "success": 0.0, "iou": 0.0, "f_score": 0.0})
        iou, f_score = self._accuracy(reference, boxes)
        accuracy = self._iou_weight * iou + (1 - self._iou_weight) * f_score
        is_format = any(box is not None for box in boxes) or boxes == truth
        score = (accuracy + self._format_weight * is_format) / (1 + self._format_weight)
        metrics = {"format": float(is_format), "success": float(f_score == 1), "iou": iou, "f_score": f_score}
        return RewardResult(score, metrics, {"num_boxes": len(boxes)})

    def _accuracy(self, reference: Sequence[Box], boxes: Sequence[Box | None]) -> tuple[float, float]:
        if not reference:
            return (0.0, 0.0) if boxes else (1.0, 1.0)
        overlaps = matches(reference, [box for box in boxes if box is not None])
        ious: list[float] = []
        f_scores: list[float] = []
        for threshold in self._thresholds:
            matched = [overlap for overlap in overlaps if overlap >= threshold]
            ious.append(math.fsum(matched) / len(reference))
            f_scores.append(2 * len(matched) / (len(reference) + len(boxes)))
        return math.fsum(ious) / len(ious), math.fsum(f_scores) / len(f_scores)


def intersection_over_union(one: Box, other: Box) -> float:
    """0 where both boxes are empty. Example: (0, 0, 2, 2) and (1, 0, 3, 2) share 2 of 6: 1/3."""
    width = min(one.x2, other.x2) - max(one.x1, other.x1)
    height = min(one.y2, other.y2) - max(one.y1, other.y1)
    shared = max(0.0, width) * max(0.0, height)
    union = one.area + other.area - shared
    return shared / union if union > 0 else 0.0


def matches(reference: Sequence[Box], boxes: Sequence[Box]) -> list[float]:
    """The overlaps of matched boxes, best first. The matches at a threshold are those that reach it: one that is below
    it takes no box from one that is above."""
    pairs = [
        (intersection_over_union(one, other), i, j)
        for i, one in enumerate(reference)
        for j, other in enumerate(boxes)
        if one.label == other.label
    ]
    taken: set[tuple[str, int]] = set()
    overlaps: list[float] = []
    for overlap, i, j in sorted(pairs, key=lambda pair: (-pair[0], pair[1], pair[2])):
        if overlap > 0 and not {("reference", i), ("found", j)} & taken:
            taken |= {("reference", i), ("found", j)}
            overlaps.append(overlap)
    return overlaps


def listed(text: str) -> str:
    text = last_tagged(text) or text
    blocks = FENCED.findall(text)
    return blocks[-1] if blocks else text


def boxes_in(value: Any) -> list[Box | None] | None:
    """The boxes of a list, given as data or as text (JSON, or Python's way to write it), None for an item that is none.
    None if there is no list."""
    if isinstance(value, str):
        value = _parsed(last_tagged(value) or value)
    if isinstance(value, Mapping):
        value = [value]
    return [_box(item) for item in value] if isinstance(value, list | tuple) else None


def _parsed(text: str) -> Any:
    start, end = text.find("["), text.rfind("]")
    if start < 0 or end < start:
        return None
    data = as_data(text[start : end + 1])
    return None if isinstance(data, str) else data


def _box(item: Any) -> Box | None:
    if not isinstance(item, Mapping):
        return None
    corners = next(_present(item, BOX_KEYS), None)
    label = next(_present(item, LABEL_KEYS), None)
    if not isinstance(label, str) or not isinstance(corners, list | tuple) or len(corners) != 4:
        return None
    if not all(isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < 1e9 for x in corners):
        return None
    x1, y1, x2, y2 = map(float, corners)
    return Box(label.strip().casefold(), x1, y1, x2, y2) if x1 <= x2 and y1 <= y2 else None


def _present(item: Mapping[str, Any], keys: Sequence[str]) -> Iterator[Any]:
    return (item[key] for key in keys if key in item)
