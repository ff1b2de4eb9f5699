"""Bodies of requests while they come: each has a size and a time, and a sender holds so much at once."""

import asyncio
from collections import Counter

from starlette.requests import Request

from roll.pipeline.agentic.proxy.endpoint.errors import Refusal

MOST_BYTES = 32 << 20  # of a body
BODY_S = 120.0
_MOST_OF_SENDER, _MOST_OF_ALL = 4 * MOST_BYTES, 32 * MOST_BYTES
_OF_EACH = 1 << 17  # that a body counts beside its bytes: their number has a limit, and each connection may have one


class Bodies:
    """Belongs to one server. Who sends is known before a body is read."""

    def __init__(self) -> None:
        self._held = Counter[str]()

    async def read(self, request: Request, sender: str) -> bytes:
        """The whole body. Raises Refusal for one that is too large or too slow, or beside too much of the same
        sender."""
        parts: list[bytes] = []
        size, counted = 0, _OF_EACH
        self._held[sender] += counted
        try:
            async with asyncio.timeout(BODY_S):
                async for part in request.stream():
                    size += len(part)
                    counted += len(part)
                    self._held[sender] += len(part)
                    if size > MOST_BYTES:
                        raise Refusal(413, f"A body has at most {MOST_BYTES} bytes.")
                    if self._held[sender] > _MOST_OF_SENDER or self._held.total() > _MOST_OF_ALL:
                        raise Refusal(429, f"Bodies that are being read have at most {_MOST_OF_SENDER} bytes together.")
                    parts.append(part)
        except TimeoutError:
            raise Refusal(408, f"The body did not come within {BODY_S:g} s.") from None
        finally:
            self._held[sender] -= counted
            if not self._held[sender]:
                del self._held[sender]
        return b"".join(parts)
