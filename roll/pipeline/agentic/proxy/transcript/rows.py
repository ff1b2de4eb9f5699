"""Training rows of a session: one per branch, in which every sampled token is trained once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from roll.pipeline.agentic.proxy.transcript.tree import Answer, Node
from roll.types.rollout import Trajectory, routes_of_row


def transcript_rows(root: Node, image_token: int = 0) -> Iterator[tuple[Trajectory, Answer]]:
    """A row for every path from the root to a leaf, in the order in which the leaves were sampled, with the answer that
    ends it. The mask is True on sampled tokens that were delivered, that no structure led, and that no earlier row has;
    a row without such tokens is left out. The ids of a row are exactly what an engine was sent for its last answer, and
    what it sampled; `image_token` stands where the tree names a picture.

    Rewards stand at nothing yet: every row has `reward` NaN and zeros as turn_rewards."""
    leaves = [node for node in root.below() if not node.children and node.answer is not None]
    trained: set[int] = set()
    number = 0
    for leaf in sorted(leaves, key=lambda node: _of(node).request):
        path = leaf.path()
        new_answers = [
            node for node in path if node.answer is not None and node.answer.is_trained and id(node) not in trained
        ]
        if not new_answers:
            continue
        trained |= {id(node) for node in new_answers}
        path = path[: path.index(new_answers[-1]) + 1]  # what nobody received at its end is context of nothing
        yield _row(path, {id(node) for node in new_answers}, number, image_token), _of(path[-1])
        number += 1


def _of(node: Node) -> Answer:
    assert node.answer is not None
    return node.answer


def _row(path: list[Node], trained: set[int], number: int, image_token: int) -> Trajectory:
    """`trained`: the nodes of the path that this row trains."""
    ids = np.concatenate([node.ids for node in path]).astype(np.int32)
    mask = np.zeros(len(ids), bool)
    log_probs = np.zeros(len(ids), np.float32)
    versions = np.full(len(ids), -1, np.int32)
    begin = 0
    for node in path:
        end = begin + len(node.ids)
        if id(node) in trained:
            sampled, part = _of(node).generation, slice(node.begin, node.begin + len(node.ids))
            mask[begin:end] = True
            log_probs[begin:end] = sampled.log_probs[part]
            versions[begin:end] = sampled.policy_versions[part]
        begin = end
    last = _of(path[-1]).generation
    num_runs = int(mask[0]) + int((mask[1:] & ~mask[:-1]).sum())
    return Trajectory(
        input_ids=np.where(ids < 0, image_token, ids).astype(np.int32),
        media=_of(path[-1]).media,
        response_mask=mask,
        log_probs=log_probs,
        policy_versions=versions,
        routes=routes_of_row(last.routes, len(ids)),
        reward=float("nan"),
        finish_reason=last.finish_reason,
        turn=number,
        turn_rewards=np.zeros(num_runs, np.float32),
    )
