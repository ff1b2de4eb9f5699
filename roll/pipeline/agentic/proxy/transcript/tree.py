"""The tokens of a session as a tree: what engines were sent and what they sampled, each token once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from roll.pipeline.agentic.proxy.transcript.message import ChatMessage
from roll.types.media import Media
from roll.types.rollout import Generation


@dataclass(eq=False, repr=False)
class Answer:
    """One sampled answer. `history` ends with its own message, `root` is the key of the tools it was asked with;
    `request` counts from 1 through the session. `delivered`: a program has received it. `stopped_by`: the request's
    stop string that ended it. `is_malformed`: it has a call that cannot be read, as text. `media`: the pictures of
    its prompt; `says_picture`: it ends with the token of one, and is not trained. `time_s`: of its
    generation."""

    message: ChatMessage
    history: tuple[ChatMessage, ...]
    root: bytes
    request: int
    generation: Generation
    num_before: int
    delivered: bool = False
    stopped_by: str = ""
    is_malformed: bool = False
    media: Media = ()
    says_picture: bool = False
    time_s: float = 0.0

    @property
    def is_trained(self) -> bool:
        return self.delivered and not self.says_picture


@dataclass(eq=False, repr=False)
class Node:
    """A run of tokens behind `parent`. Of a sampled one, `answer` is what it belongs to and `begin` its place therein;
    `is_end` where it ends the answer."""

    parent: Node | None
    ids: np.ndarray  # int32
    answer: Answer | None = None
    begin: int = 0
    children: list[Node] = field(default_factory=list)

    @property
    def is_end(self) -> bool:
        return self.answer is not None and self.begin + len(self.ids) == len(self.answer.generation.token_ids)

    def path(self) -> list[Node]:
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def path_ids(self) -> np.ndarray:
        return np.concatenate([node.ids for node in self.path()])

    def answers(self) -> list[Answer]:
        return [node.answer for node in self.path() if node.answer is not None and node.is_end]

    def below(self) -> Iterator[Node]:
        """This node and all that follow."""
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))


@dataclass(frozen=True)
class Walk:
    """How far ids are there already: `node` holds the last shared token as its token `inside` - 1; `matched` are
    shared in all, counted from the node where the walk began."""

    node: Node
    inside: int
    matched: int

    @property
    def others(self) -> list[Node]:
        """Continuations behind the last shared token."""
        return [self.node] if self.inside < len(self.node.ids) else self.node.children


def walk(start: Node, ids: np.ndarray) -> Walk:
    """Return the longest path below `start` that matches the token ids."""
    node, inside, matched = start, len(start.ids), 0
    while matched < len(ids) and inside == len(node.ids):
        best = max(((_shared(child.ids, ids[matched:]), child) for child in node.children), key=_count, default=None)
        if best is None or not best[0]:
            break
        inside, node = best
        matched += inside
    return Walk(node, inside, matched)


def _count(entry: tuple[int, Node]) -> int:
    return entry[0]


def _shared(a: np.ndarray, b: np.ndarray) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def insert(start: Node, ids: np.ndarray) -> Node:
    """The node that ends with these ids behind `start`: shared tokens stay where they are, and a node that holds others
    behind them is split at exactly the first token that differs."""
    walked = walk(start, ids)
    end = _split(walked.node, walked.inside) if walked.inside < len(walked.node.ids) else walked.node
    if walked.matched == len(ids):
        return end
    node = Node(end, ids[walked.matched :])
    end.children.append(node)
    return node


def add_answer(end: Node, answer: Answer) -> Node:
    """Add an answer that was sampled behind `end`: a node of its own even if an equal answer is there, since it was
    sampled again."""
    node = Node(end, answer.generation.token_ids, answer)
    end.children.append(node)
    return node


def _split(node: Node, place: int) -> Node:
    """The new node of the tokens before `place`; `node` itself keeps the rest, and whoever refers to its end does."""
    assert node.parent is not None and 0 < place < len(node.ids)
    head = Node(node.parent, node.ids[:place], node.answer, node.begin, [node])
    siblings = node.parent.children
    siblings[siblings.index(node)] = head
    node.parent, node.ids, node.begin = head, node.ids[place:], node.begin + (place if node.answer else 0)
    return head
