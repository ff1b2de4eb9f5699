"""Which of several engines gets a request: the least loaded one, but for what another has cached already."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import TypeVar

from roll.types.rollout import GenerationRequest

Key = TypeVar("Key")
_MAX_PLACES = 16_384
_SPARE_ANSWERS, _SPARE_FACTOR = 8, 1.5  # so much more than the least loaded may an engine have to be preferred


class EngineRouter:
    """Remembers where the last request of a session went (the next turn of an episode finds its beginning cached
    there), and where a prompt went (other attempts at it share its cache). An engine that is gone, or much more loaded
    than the others, is not waited for: then the session moves.

    Example: loads {0: 12, 1: 6}; a session that was on 0 stays there (12 <= 1.5 * 6 + 8), a new prompt goes to 1.
    """

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, int] = OrderedDict()
        self._prompts: OrderedDict[bytes, int] = OrderedDict()

    def choose(self, request: GenerationRequest, loads: Mapping[int, int]) -> int:
        """The rank for this request. `loads` has the answers that each usable engine owes."""
        least = min(loads.values())
        if not any(loads.values()):
            self._prompts.clear()  # all are answered: the next ones may come after a weight update
        prompt = hashlib.blake2b(request.prompt_ids.tobytes(), digest_size=16).digest()
        known = (self._sessions.get(request.session), self._prompts.get(prompt))
        bearable = _SPARE_FACTOR * least + _SPARE_ANSWERS
        preferred = [rank for rank in known if rank is not None and rank in loads and loads[rank] <= bearable]
        rank = preferred[0] if preferred else min(loads, key=lambda rank: (loads[rank], rank))
        if request.session:
            _remember(self._sessions, request.session, rank)
        _remember(self._prompts, prompt, rank)
        return rank


def _remember(places: OrderedDict[Key, int], key: Key, rank: int) -> None:
    places[key] = rank
    places.move_to_end(key)
    if len(places) > _MAX_PLACES:
        places.popitem(last=False)
