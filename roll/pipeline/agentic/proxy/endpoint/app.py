"""The routes of the endpoint: who may ask, and how a reply travels."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from roll.errors import describe
from roll.pipeline.agentic.proxy.endpoint.anthropic import AnthropicWire, MessagesBody, read_anthropic
from roll.pipeline.agentic.proxy.endpoint.chat import ChatBody, ChatWire, read_chat
from roll.pipeline.agentic.proxy.endpoint.errors import Refusal, not_allowed
from roll.pipeline.agentic.proxy.endpoint.fields import read_body, received
from roll.pipeline.agentic.proxy.endpoint.responses import ResponsesBody, ResponsesWire, read_responses
from roll.pipeline.agentic.proxy.endpoint.reward import outcome_of
from roll.pipeline.agentic.proxy.endpoint.session import Exchange, Reply, Session, session_of
from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, ChatCall
from roll.pipeline.agentic.proxy.transcript.render import RenderRefused
from roll.utils.background import start

if TYPE_CHECKING:
    from roll.pipeline.agentic.proxy.endpoint.server import Endpoint

BEGIN_S = 1.0  # in which a failure is still told by the status of a stream
PING_S = 10.0
MODEL = "policy"

Wire = ChatWire | ResponsesWire | AnthropicWire


def make_app(endpoint: "Endpoint") -> FastAPI:
    """Serves the protocols under /v1, where the key says which session it is, and under /s/SESSION/v1."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    routes = _Routes(endpoint)
    for prefix in ("", "/s/{session_id}"):
        add = app.add_api_route
        add(f"{prefix}/v1/chat/completions", routes.chat, methods=["POST"])
        add(f"{prefix}/v1/responses", routes.responses, methods=["POST"])
        add(f"{prefix}/v1/messages", routes.messages, methods=["POST"])
        add(f"{prefix}/v1/messages/count_tokens", routes.count_tokens, methods=["POST"])
        add(f"{prefix}/v1/models", routes.models, methods=["GET"])
        add(f"{prefix}/v1/models/{{model:path}}", routes.models, methods=["GET"])
        add(f"{prefix}/v1/reward", routes.reward, methods=["POST"])
        add(f"{prefix}/v1/task", routes.task, methods=["GET"])
    app.add_api_route("/s/{session_id}", routes.give_up, methods=["DELETE"])
    add_errors(app)
    return app


def add_errors(app: FastAPI) -> None:
    """Errors in the shape of the request's protocol."""

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientDisconnect):
            return Response(status_code=499)
        if isinstance(error, HTTPException):
            error = Refusal(error.status_code, f"{request.method} {request.url.path}: {error.detail}.", "not_found")
        elif not isinstance(error, Refusal):
            error = Refusal(500, f"The endpoint failed: {describe(error)}")
        body = error.anthropic() if _is_anthropic(request) else error.openai()
        return JSONResponse(body, error.status, error.headers)

    for kind in (Refusal, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, refused)


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers or "/v1/messages" in request.url.path


class _Routes:
    def __init__(self, endpoint: "Endpoint"):
        self._endpoint = endpoint

    async def chat(self, request: Request) -> Response:
        session, body = await self._received(request)
        with _read(session):
            read: ChatBody = read_body(ChatBody, body)
            exchange = await _exchange(session, request, read_chat(read, session.vision), body, read.model)
        wire = ChatWire(read, session.parser, f"{session.session_id[-8:]}{exchange.request}")
        return await _answered(session, request, exchange, wire, bool(read.stream))

    async def responses(self, request: Request) -> Response:
        session, body = await self._received(request)
        with _read(session):
            read: ResponsesBody = read_body(ResponsesBody, body)
            exchange = await _exchange(session, request, read_responses(read, session), body, read.model)
        return await _answered(session, request, exchange, ResponsesWire(read, session), bool(read.stream))

    async def messages(self, request: Request) -> Response:
        session, body = await self._received(request)
        with _read(session):
            read: MessagesBody = read_body(MessagesBody, body)
            if read.max_tokens is None:
                raise Refusal(400, "max_tokens: Field required", param="max_tokens")
            if read.messages[-1].get("role") == ASSISTANT:
                raise Refusal(400, "messages: the last one is the assistant's; the response cannot be started.")
            exchange = await _exchange(session, request, read_anthropic(read, session.vision), body, read.model)
        wire = AnthropicWire(read, f"{session.session_id[-8:]}{exchange.request}")
        return await _answered(session, request, exchange, wire, bool(read.stream))

    async def count_tokens(self, request: Request) -> Response:
        session, body = await self._received(request)
        with _read(session):
            call = read_anthropic(read_body(MessagesBody, body), session.vision)
            prompt = await asyncio.to_thread(session.transcript.renderer.whole, call.messages, call.tools)
        return JSONResponse({"input_tokens": len(prompt.ids)})

    async def models(self, request: Request) -> Response:
        session = self._session(request)
        names = session.sides or (MODEL,)
        if _is_anthropic(request):
            one: dict[str, Any] = {"type": "model", "display_name": MODEL, "created_at": "1970-01-01T00:00:00Z"}
            more = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
        else:
            one, more = {"object": "model", "created": 0, "owned_by": "roll"}, {"object": "list"}
        if (name := request.path_params.get("model")) is not None:
            session.side_of(name)
            return JSONResponse({"id": name, **one})
        return JSONResponse({"data": [{"id": name, **one} for name in names], **more})

    async def reward(self, request: Request) -> Response:
        """{"reward": number, "metrics": {...}}: what the session earned. Of a program that the run has started the last
        one counts; from outside it ends the session, and the same one may be sent again."""
        session_id = self._named(request, self._endpoint.reward_key_of)
        body = await received(request)  # the session may end meanwhile
        session = self._endpoint.find(session_id)
        former = self._endpoint.reward_of(session_id) if session is None else session.outcome
        sides = session.sides if session is not None else () if former is None else tuple(former.sides)
        try:
            payload = json.loads(body)
            earned = outcome_of(payload if isinstance(payload, dict) else {}, sides)
        except ValueError as error:
            raise Refusal(400, f'Send {{"reward": a number, "metrics": numbers by name}}: {describe(error)}') from None
        if former is not None and (session is None or session.is_outside) and former != earned:
            raise Refusal(400, f"The session has its reward already: {former.reward:g}.", "reward_given")
        if (former is None) if session is None else session.failure:
            raise _over()
        if session is not None and session.is_outside and not session.num_answers:
            raise Refusal(
                400, "The session has no response of the policy yet: there is nothing to reward.", "no_answer"
            )
        if session is not None:
            session.give(earned)
        return JSONResponse({"reward": earned.reward})

    async def give_up(self, request: Request) -> Response:
        """Ends a session without a reward. Its attempt is played anew, as another session."""
        session = self._session(request)
        if not session.is_outside:
            raise Refusal(400, "This run has started the program itself: end the program.", "unsupported")
        if session.outcome is not None:
            raise Refusal(400, f"The session has its reward already: {session.outcome.reward:g}.", "reward_given")
        session.failure = "the program gave the session up"
        return JSONResponse({"session": session.session_id})

    async def task(self, request: Request) -> Response:
        task = json.dumps(dict(self._session(request).task))  # NaN and lone surrogates as Python writes them
        return Response(task, media_type="application/json")

    async def _received(self, request: Request) -> tuple[Session, bytes]:
        session = self._session(request)
        return session, await received(request)

    def _session(self, request: Request) -> Session:
        session = self._endpoint.find(self._named(request, self._endpoint.key_of))
        if session is None:
            raise _over()
        return session

    def _named(self, request: Request, key_of: Callable[[str], str]) -> str:
        """The session that the key opens, which the path may name besides. Raises Refusal, with the same words whatever
        is wrong."""
        key = key_in(request.headers)
        session_id = session_of(key)
        is_own = hmac.compare_digest(key.encode(), key_of(session_id).encode())
        if not is_own or request.path_params.get("session_id") not in (None, session_id):
            raise not_allowed()
        return session_id


def key_in(headers: Mapping[str, str]) -> str:
    """The key of a request, in either protocol's header; "" without one, or with two that differ."""
    scheme, _, bearer = (header := headers.get("authorization", "")).partition(" ")
    bearer = bearer.strip() if scheme.lower() == "bearer" else header
    keys = {key for key in (bearer, headers.get("x-api-key", "")) if key}
    return keys.pop() if len(keys) == 1 else ""


def _over() -> Refusal:
    return Refusal(410, "The session is over.", "session_closed")


@contextmanager
def _read(session: Session) -> Iterator[None]:
    """Refuses what neither JSON nor the chat template takes, and counts refusals."""
    try:
        yield
    except (Refusal, RenderRefused, TypeError, AttributeError) as error:  # a list where a text should be, and the like
        text = str(error) if isinstance(error, RenderRefused) else f"The body cannot be read: {describe(error)}"
        refusal = error if isinstance(error, Refusal) else Refusal(400, text)
        session.count_refusal(refusal)
        raise refusal from None


async def _exchange(session: Session, request: Request, call: ChatCall, body: bytes, model: str) -> Exchange:
    digest = hashlib.blake2b(request.url.path.encode() + b"\0" + body, digest_size=16).digest()
    return await session.exchange(replace(call, side=session.side_of(model)), digest)


async def _answered(session: Session, request: Request, exchange: Exchange, wire: Wire, streams: bool) -> Response:
    """Reply to a request: a failure in its first BEGIN_S seconds is reported by the status, in a stream too."""
    gone = start(until_gone(request))
    try:
        limit_s = BEGIN_S if streams else None
        await asyncio.wait({exchange.work, gone}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            session.leave(exchange)
            return Response(status_code=499)
        if streams and not exchange.has_failed:
            events = _stream(session, exchange, wire)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        reply = await _result(exchange.work)
        response = JSONResponse(wire.reply(reply))
        reply.deliver()
        return response
    finally:
        gone.cancel()


async def until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _result(work: Awaitable[Reply]) -> Reply:
    try:
        return await work
    except asyncio.CancelledError:
        raise _over() from None


async def _stream(session: Session, exchange: Exchange, wire: Wire) -> AsyncIterator[str]:
    """The first events at once, something now and then while nothing is there, and the rest when the answer is; an
    error is an event, too."""
    is_delivered = False
    try:
        for line in wire.begin(exchange):
            yield line
        while not (await asyncio.wait({exchange.work}, timeout=PING_S))[0]:
            yield wire.ping()
        try:
            reply = await _result(exchange.work)
        except Refusal as refusal:
            yield wire.error(refusal)
            return
        *lines, last = wire.events(reply)
        yield "".join(lines)
        reply.deliver()
        is_delivered = True
        yield last
    finally:
        if not is_delivered:
            session.leave(exchange)
