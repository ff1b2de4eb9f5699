"""A judge behind an OpenAI-compatible address."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from roll.configs.sections.cluster import GeneratingArgs
from roll.configs.tables.sight import PictureSizes
from roll.datasets.pictures.decode import as_png, decode, read_bytes
from roll.datasets.pictures.forms import format_of
from roll.errors import PictureError, RewardError, describe
from roll.rewards.config import RewardConfig
from roll.rewards.judge.judge import Judge, JudgePrompt, Reply, VerdictReader, prompt_named
from roll.rewards.judge.prompt_marks import without_control_marks
from roll.types.media import PictureSource
from roll.utils.secrets import mask

if TYPE_CHECKING:
    from openai import AsyncOpenAI

KEY_VARIABLE = "JUDGE_API_KEY"
_NO_KEY = "none"  # the client wants one; a server that needs none ignores it
_PATH = "/chat/completions"
_LOOK_LIMIT_S = 10.0
_SENT_AS_THEY_ARE = ("PNG", "WEBP")  # JPEG may lie on its side
_MOST_PIXELS = 2048 * 2048  # of one that is decoded for it


@dataclass(frozen=True)
class Address:
    """Address of a judge's model, and what is sent with every request. The key appears in no text that is shown."""

    url: str
    model: str
    key: str | None = field(default=None, repr=False)

    @property
    def base_url(self) -> str:
        """Example: http://host/v1/chat/completions is below http://host/v1."""
        return self.url.rstrip("/").removesuffix(_PATH)

    def shown(self, text: str) -> str:
        return mask(text, [] if not self.key else [self.key])

    def __str__(self) -> str:
        return self.shown(f"the judge {self.model} at {self.base_url}")


def key_of(key: str | None) -> str | None:
    """The key of the settings, or else of the environment of this process."""
    return key or os.environ.get(KEY_VARIABLE)


class ApiModel:
    """Asks a model behind an API. At most `max_requests` are in flight; others wait. The client retries errors that a
    server may recover from (408, 409, 429, 5xx, a failed connection, no response within `request_timeout_s`), later
    each time, or when Retry-After says."""

    def __init__(
        self, address: Address, sampling: GeneratingArgs, max_requests: int, request_timeout_s: float | None = None
    ):
        import openai  # takes seconds: only where a judge is asked

        self._openai, self._address = openai, address
        self._arguments = {"model": address.model, **_sampling(sampling)}
        self._max_requests, self._timeout_s = max_requests, request_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None

    async def reply(self, text: str, max_retries: int, pictures: Sequence[PictureSource] = ()) -> Reply:
        client, room = self._of_this_loop()
        content = await asyncio.to_thread(_content, without_control_marks(text), pictures)
        messages = [{"role": "user", "content": content}]
        try:
            async with room:
                completions = client.with_options(max_retries=max_retries).chat.completions
                raw = await completions.with_raw_response.create(messages=messages, **self._arguments)  # type: ignore[arg-type]
        except self._openai.OpenAIError as error:
            raise RewardError(self._address.shown(f"{self._address}: {describe(error)}")) from None
        return _read(raw.text, raw.retries_taken)

    def _of_this_loop(self) -> tuple[AsyncOpenAI, asyncio.Semaphore]:
        """Connections belong to an event loop, and a worker whose loop was blocked gets another."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._client = self._openai.AsyncOpenAI(
                api_key=self._address.key or _NO_KEY, base_url=self._address.base_url, timeout=self._timeout_s
            )
            self._room = asyncio.Semaphore(self._max_requests)
        return self._client, self._room


def _content(text: str, pictures: Sequence[PictureSource]) -> Any:
    """The content of a message that shows pictures, each as a data URL, before its text. Raises RewardError for a
    picture that cannot be read."""
    if not pictures:
        return text
    try:
        shown = [{"type": "image_url", "image_url": {"url": _data_url(source)}} for source in pictures]
    except PictureError as error:
        raise RewardError(f"the judge cannot be shown a picture: {error}") from None
    return [*shown, {"type": "text", "text": text}]


def _data_url(source: PictureSource) -> str:
    contents = read_bytes(source)
    kind = format_of(contents[:16])
    if kind not in _SENT_AS_THEY_ARE:
        contents, kind = as_png(decode(source, PictureSizes(1, 1, _MOST_PIXELS)).array), "PNG"
    return f"data:image/{kind.lower()};base64,{base64.b64encode(contents).decode('ascii')}"


def _sampling(keys: GeneratingArgs) -> dict[str, Any]:
    """Return the sampling arguments that the protocol knows; the server chooses those that are not set."""
    arguments: dict[str, Any] = {"temperature": keys.temperature}
    if keys.top_p != 1:
        arguments["top_p"] = keys.top_p
    if keys.max_new_tokens is not None:
        arguments["max_tokens"] = keys.max_new_tokens
    if keys.stop_strings:
        arguments["stop"] = list(keys.stop_strings)
    return arguments


def _read(sent: str, num_retries: int) -> Reply:
    """Read a server's reply, which may be anything: missing parts make an empty reply."""
    try:
        body = _mapping(json.loads(sent))
    except (ValueError, RecursionError):
        body = {}
    choice = _first(body.get("choices"))
    content, usage = _mapping(choice.get("message")).get("content"), _mapping(body.get("usage"))
    return Reply(
        content if isinstance(content, str) else "",
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
        choice.get("finish_reason") == "length",
        num_retries,
    )


def _first(value: Any) -> Mapping[str, Any]:
    return _mapping(value[0]) if isinstance(value, list) and value else {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def why_not_reached(address: Address) -> str | None:
    """Return the reason why this machine cannot reach the judge; None if it replies in any way."""
    import openai

    client = openai.OpenAI(
        api_key=address.key or _NO_KEY, base_url=address.base_url, max_retries=0, timeout=_LOOK_LIMIT_S
    )
    try:
        client.models.list()
    except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
        return address.shown(f"{address} does not accept the key: {describe(error)}")
    except openai.APIConnectionError as error:
        cause = error.__cause__ or error
        return address.shown(f"{address} cannot be reached: {describe(cause)}")
    except (openai.OpenAIError, ValueError, TypeError, AttributeError):  # not every server has a list of models
        return None
    return None


# Builds the judge of a domain from its keys.


def method_of(config: RewardConfig) -> tuple[JudgePrompt, VerdictReader]:
    """Prompt of the judge of a domain, and how its replies are read. Raises ValueError, or OSError, for a prompt or
    a pattern that is none."""
    named = prompt_named(config.judge_prompt)
    form = config.judge_verdict or ("pattern" if config.judge_verdict_pattern is not None else named.verdict)
    low, high = config.judge_score_range
    read = VerdictReader(form, config.judge_verdict_pattern, config.judge_scores, (low, high))
    return JudgePrompt(named.text, low, high), read


def address_of(config: RewardConfig) -> Address:
    assert config.judge_api_url is not None and config.judge_model_name is not None
    return Address(config.judge_api_url, config.judge_model_name, key_of(config.judge_api_key))


class ApiJudge(Judge):
    """A judge behind an address, for one of the domain's processes, which share the requests among them."""

    def __init__(self, config: RewardConfig):
        prompt, read = method_of(config)
        max_requests = max(1, config.judge_max_requests // config.num_workers)
        model = ApiModel(address_of(config), config.generating_args, max_requests, config.judge_request_timeout_s)
        super().__init__(prompt, read, model, config.judge_max_retries, bool(config.judge_sees_pictures))

    @staticmethod
    def columns(config: RewardConfig) -> tuple[str, ...]:
        """Columns of the data that a domain's prompt takes up, whoever judges."""
        return method_of(config)[0].columns

    @staticmethod
    def for_workers(config: RewardConfig) -> RewardConfig:
        """The config with what only this process can read: the prompt's file, and the key of its environment."""
        key, prompt = key_of(config.judge_api_key), prompt_named(config.judge_prompt).text
        changes = {"judge_prompt": prompt, "judge_api_key": key, "judge_verdict": method_of(config)[1].form}
        return config.model_copy(update=changes)
