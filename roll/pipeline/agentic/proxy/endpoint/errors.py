"""Refusals of the endpoint, in the words of each protocol."""

from collections.abc import Mapping
from typing import Any

_ANTHROPIC_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_OPENAI_KINDS: Mapping[int, str] = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}


class Refusal(Exception):
    """A request that is answered with an error. `code`: OpenAI's, where it has one; `param` the field. SDKs send again
    what is refused with 408, 409, 429 and 5xx: only what may pass gets such a status."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None):
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "5"} if self.status == 503 else {}

    def openai(self) -> dict[str, Any]:
        kind = _OPENAI_KINDS.get(self.status, "server_error" if self.status > 499 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic(self) -> dict[str, Any]:
        kind = _ANTHROPIC_KINDS.get(self.status, "api_error" if self.status > 499 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}, "request_id": None}


def not_allowed() -> Refusal:
    """The same for a session that there is not and for a key that is not its own."""
    return Refusal(401, "The API key is not one of a session of this run.", "invalid_api_key")
