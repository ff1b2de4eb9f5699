"""The witness of a session: which sampled tokens a request continues, where it breaks with them, and the rows that are
trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from roll.pipeline.agentic.proxy.transcript.causes import Break, cause_of
from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, ChatCall, ChatMessage, chained
from roll.pipeline.agentic.proxy.transcript.render import Renderer
from roll.pipeline.agentic.proxy.transcript.tree import Answer, Node, Walk, add_answer, insert, walk
from roll.types.rollout import Generation

_SHOWN_TOKENS = 12
_LONGEST_SHOWN = 40
_MOST_BREAKS = 50  # that a session keeps for its reader


Added = tuple[Node, np.ndarray, bool]
"""The node that a request continues, the ids behind it, and whether the template alone kept it from the answer that its
messages continue."""


@dataclass(frozen=True, repr=False)
class Prepared:
    """A request as tokens. `num_before`: sampled answers on its path; `repeat`: how often the same prompt was asked
    before. `base` is the node behind which `inherited` stands."""

    call: ChatCall
    request: int
    base: Node
    inherited: np.ndarray
    prompt_ids: np.ndarray
    num_before: int
    repeat: int


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
        base, added_ids, is_rendering = added or self.tokenised(call)
        walked = walk(base, added_ids)
        self._witness(call, base, walked, added_ids, is_rendering)
        prompt = np.concatenate([base.path_ids(), added_ids]).astype(np.int32)
        path = walked.node.answers() if walked.inside == len(walked.node.ids) else walked.node.path()[-2].answers()
        for answer in base.answers():
            answer.delivered = True  # the program has shown it
        key = prompt.tobytes()
        repeat, self._num_requests[key] = self._num_requests[key], self._num_requests[key] + 1
        return Prepared(call, self.counts["requests"], base, added_ids, prompt, len(path), repeat)

    def commit(self, prepared: Prepared, generation: Generation, message: ChatMessage) -> Answer:
        """Adds what was sampled for a request."""
        call = prepared.call
        answer = Answer(
            message, (*call.messages, message), call.root, prepared.request, generation, prepared.num_before
        )
        node = add_answer(insert(prepared.base, prepared.inherited), answer)
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
            added_ids = self.renderer.behind(call.messages, place, call.tools, node.answer.generation.token_ids)
            if added_ids is not None:
                return node, added_ids, kept_off
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
        show = self.renderer.encoder.show

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

    def _is_known(self, messages: Sequence[ChatMessage]) -> bool:
        """Whether one of these is an answer of this session, but for white space, thinking and how calls are
        written."""
        served = {_loose(node.answer.message) for node in self.root.below() if node.answer is not None}
        return any(_loose(message) in served for message in messages if message.role == ASSISTANT)


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
