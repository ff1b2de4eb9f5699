"""The witness of a session: which sampled tokens a request continues, where it breaks with them, and the rows that are
trained."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from roll.pipeline.agentic.proxy.transcript.causes import Break, cause_of
from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, ChatCall, ChatMessage, chained
from roll.pipeline.agentic.proxy.transcript.render import Renderer
from roll.pipeline.agentic.proxy.transcript.tree import Answer, Node, Walk, add_answer, insert, walk
from roll.pipeline.agentic.sample_forms import without_pixels
from roll.types.media import Media, Prompt
from roll.types.rollout import Generation, Trajectory, routes_of_row

_SHOWN_TOKENS = 12
_LONGEST_SHOWN = 40
_MOST_BREAKS = 50  # that a session keeps for its reader


Added = tuple[Node, Prompt, bool]
"""The node that a request continues, what stands behind it, and whether the template alone kept it from the answer that
its messages continue."""


@dataclass(frozen=True, repr=False)
class Prepared:
    """A request as tokens. `num_before`: sampled answers on its path; `repeat`: how often the same prompt was asked
    before. `base` is the node behind which `inherited` stands, as ids of the tree."""

    call: ChatCall
    request: int
    base: Node
    inherited: np.ndarray
    prompt_ids: np.ndarray
    num_before: int
    repeat: int
    media: Media = ()


@dataclass(repr=False)
class Transcript:
    """Every answer that a session got, and the prompts between them."""

    renderer: Renderer
    root: Node = field(default_factory=lambda: Node(None, np.zeros(0, np.int32)))
    counts: Counter[str] = field(default_factory=Counter)
    breaks: list[Break] = field(default_factory=list)
    _by_key: dict[bytes, list[Node]] = field(default_factory=dict)
    _num_requests: Counter[bytes] = field(default_factory=Counter)

    def prepare(self, call: ChatCall, added: Added | None = None) -> Prepared:
        """The prompt: what is known of the conversation stays as it was sampled, and only what follows is tokenised,
        unless it was (`added`). Counts whether the request continues or breaks. Raises RenderRefused."""
        self.counts["requests"] += 1
        base, new, is_rendering = added or self.tokenised(call)
        added_ids = _named(new)
        walked = walk(base, added_ids)
        self._witness(call, base, walked, added_ids, is_rendering)
        before = base.path_ids()
        prompt = np.concatenate([before, added_ids]).astype(np.int32)
        shown = () if base.answer is None else base.answer.media
        media = (*shown, *(each.moved(len(before)) for each in new.media))
        path = walked.node.answers() if walked.inside == len(walked.node.ids) else walked.node.path()[-2].answers()
        for answer in base.answers():
            answer.delivered = True  # the program has shown it
        key = prompt.tobytes()
        repeat, self._num_requests[key] = self._num_requests[key], self._num_requests[key] + 1
        ids = self._unnamed(prompt)
        return Prepared(call, self.counts["requests"], base, added_ids, ids, len(path), repeat, media)

    def commit(self, prepared: Prepared, generation: Generation, message: ChatMessage) -> Answer:
        """Adds what was sampled for a request."""
        call = prepared.call
        answer = Answer(
            message, (*call.messages, message), call.root, prepared.request, generation, prepared.num_before,
            media=without_pixels(prepared.media),
        )  # fmt: skip
        node = add_answer(insert(prepared.base, prepared.inherited), answer)
        if not self.renderer.encoder.placeholders.isdisjoint(generation.token_ids[-1:].tolist()):
            answer.says_picture = True  # nothing could stand in its place: a request renders it anew, without
            return answer
        before = call.chain[-1] if call.messages else call.root
        (key,) = chained(before, [message])
        self._by_key.setdefault(key, []).append(node)
        return answer

    def tokenised(self, call: ChatCall) -> Added:
        """Return what the request adds. Changes nothing, so that another thread may ask. Raises RenderRefused."""
        kept_off = False
        for place in reversed(range(len(call.messages))):
            nodes = self._by_key.get(call.chain[place])
            if not nodes or call.messages[place].role != ASSISTANT:
                continue
            node = _choice(nodes, call.messages[place])
            assert node.answer is not None
            added = self.renderer.behind(call.messages, place, call.tools, node.answer.generation.token_ids)
            if added is not None:
                return node, added, kept_off
            kept_off = True
        return self.root, self.renderer.whole(call.messages, call.tools), kept_off

    def _witness(self, call: ChatCall, base: Node, walked: Walk, added_ids: np.ndarray, is_rendering: bool) -> None:
        if not any(message.role == ASSISTANT for message in call.messages):
            self.counts["fresh"] += 1
            return
        last = max(i for i, message in enumerate(call.messages) if message.role == ASSISTANT)
        is_exact = base.answer is not None and call.chain[last] in self._by_key and not is_rendering
        if is_exact or walked.matched == len(added_ids) or not walked.others:
            self.counts["fresh" if base is self.root and not walked.matched else "continued"] += 1
            return
        old = _newest(walked.others)
        started = any(node.answer is not None for node in (*walked.node.path(), *walked.others))
        if not (started or self._is_known(call.messages)):
            self.counts["fresh"] += 1
            return
        place, cause = cause_of(old.history, old.root, call, is_rendering)
        self.counts["broken"] += 1
        self.counts[f"broken_{cause}"] += 1
        if len(self.breaks) < _MOST_BREAKS:
            self.breaks.append(self._break(place, cause, base, walked, added_ids))

    def _break(self, place: int, cause: str, base: Node, walked: Walk, added_ids: np.ndarray) -> Break:
        before = np.concatenate([base.path_ids(), added_ids[: walked.matched]])
        other = walked.others[0]
        was = other.ids[walked.inside :] if other is walked.node else other.ids

        def show(ids: np.ndarray) -> str:
            return self.renderer.encoder.show(self._unnamed(ids))

        def shown(ids: np.ndarray) -> str:
            return show(ids[:_SHOWN_TOKENS])[:_LONGEST_SHOWN]

        return Break(
            request=self.counts["requests"],
            message=place,
            at_token=len(before),
            cause=cause,
            before=show(before[-_SHOWN_TOKENS:])[-_LONGEST_SHOWN:],
            was=shown(was),
            now=shown(added_ids[walked.matched :]),
        )

    def rows(self) -> Iterator[tuple[Trajectory, Answer]]:
        """Training rows of the session, each with the answer that ends it."""
        vision = self.renderer.encoder.vision
        return transcript_rows(self.root, 0 if vision is None else vision.image_token)

    def _unnamed(self, ids: np.ndarray) -> np.ndarray:
        vision = self.renderer.encoder.vision
        return ids if vision is None else np.where(ids < 0, vision.image_token, ids).astype(np.int32)

    def _is_known(self, messages: Sequence[ChatMessage]) -> bool:
        """Whether one of these is an answer of this session, but for white space, thinking and how calls are
        written."""
        served = {_loose(node.answer.message) for node in self.root.below() if node.answer is not None}
        return any(_loose(message) in served for message in messages if message.role == ASSISTANT)


def _named(prompt: Prompt) -> np.ndarray:
    """Ids of the tree, where a negative number of its own stands for each picture: what was said behind one is not said
    behind another."""
    ids = prompt.ids.copy() if prompt.media else prompt.ids
    for each in prompt.media:
        name = hashlib.blake2b(each.picture.digest.encode(), digest_size=4).digest()
        ids[each.start : each.end] = -1 - (int.from_bytes(name, "little") >> 1)
    return ids


def _choice(nodes: Sequence[Node], message: ChatMessage) -> Node:
    """Chooses among equal responses to equal prompts: of those that were delivered the one whose call ids came
    back, else the newest without a successor."""
    nodes = [node for node in nodes if node.answer is not None and node.answer.delivered] or nodes
    ids = [call.call_id for call in message.calls]
    for node in nodes:
        assert node.answer is not None
        if ids and ids == [call.call_id for call in node.answer.message.calls]:
            return node
    return next((node for node in reversed(nodes) if not node.children), nodes[-1])


def _newest(nodes: Sequence[Node]) -> Answer:
    answers = [node.answer for top in nodes for node in top.below() if node.answer is not None]
    return max(answers, key=lambda answer: answer.request)


def _loose(message: ChatMessage) -> tuple[str, tuple[str, ...]]:
    return "".join(message.content.split()), tuple(sorted(call.name for call in message.calls))


def transcript_rows(root: Node, image_token: int = 0) -> Iterator[tuple[Trajectory, Answer]]:
    """A row for every path from the root to a leaf, in the order in which the leaves were sampled, with the answer that
    ends it. The mask is True on sampled tokens that were delivered and that no earlier row has;
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
