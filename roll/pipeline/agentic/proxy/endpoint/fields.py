"""Bodies of requests: their size, their fields, and the fields that do nothing here."""

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request

from roll.pipeline.agentic.proxy.endpoint.errors import Refusal

MOST_BYTES = 32 << 20  # of a body
BODY_S = 120.0


class Body(BaseModel):
    """The fields of a request that are read, and all others as they came."""

    model_config = ConfigDict(extra="allow")

    def ignored(self, tools_left_out: Sequence[str], choice: object) -> tuple[str, ...]:
        """Names of what the request says and does nothing here. A response is never forced into a form: the trainer
        could not reproduce its log-probs."""
        given = sorted(name for name, value in (self.model_extra or {}).items() if value is not None)
        forced = () if choice in (None, "auto", "none") else ("tool_choice",)
        return (*given, *forced, *(f"the tool {name}" for name in tools_left_out))


async def received(request: Request) -> bytes:
    """The whole body. Raises Refusal for one that is too large or too slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BYTES:
                    raise Refusal(413, f"A body has at most {MOST_BYTES} bytes.")
    except TimeoutError:
        raise Refusal(408, f"The body did not come within {BODY_S:g} s.") from None
    return bytes(body)


def read_body(kind: type[BaseModel], body: bytes) -> Any:
    """The body as that model. Raises Refusal that names the field."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "body"
        raise Refusal(400, f"{field}: {first['msg']}", param=field) from None
