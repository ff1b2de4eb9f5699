"""Pictures in requests: the policy sees them as it sees those of rows, in every protocol."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import pytest
from tiny_vision import build_vision_model, build_vision_tokenizer, save_vision_pretrained

from roll.configs.sections.model import ModelArgs
from roll.configs.tables.sight import VisionModel
from roll.datasets.pictures.decode import as_png
from roll.models.vision.files import vision_of
from roll.pipeline.agentic.sample_forms import ChatEncoder
from tests.unit.pipeline.agentic.proxy.parts import Place, check_rows, serve
from tests.unit.pipeline.agentic.proxy.test_clients import post


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    tokenizer = build_vision_tokenizer()
    directory = save_vision_pretrained(tmp_path_factory.mktemp("sees"), build_vision_model(tokenizer), tokenizer)
    found = vision_of(ModelArgs(model_name_or_path=str(directory)))
    assert found is not None
    return found.with_limits(16, 4096)


def data(level: int) -> str:
    return base64.b64encode(as_png(np.full((40, 30, 3), level, np.uint8))).decode()


def chat(*levels: int, said: str = "") -> dict[str, Any]:
    def shown(level: int) -> dict[str, Any]:
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data(level)}", "detail": "low"}}
        return {"role": "user", "content": [{"type": "text", "text": "which?"}, part]}

    messages = [shown(levels[0])]
    for level in levels[1:]:
        messages += [{"role": "assistant", "content": said}, shown(level)]
    return {"messages": messages}


def of_protocol(route: str, url: str) -> dict[str, Any]:
    if route == "/messages":
        source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
        source = source if url.startswith("data:") else {"type": "url", "url": url}
        content = [{"type": "text", "text": "which?"}, {"type": "image", "source": source}]
        return {"max_tokens": 9, "messages": [{"role": "user", "content": content}]}
    content = [{"type": "input_text", "text": "which?"}, {"type": "input_image", "image_url": url, "detail": "auto"}]
    return {"input": [{"role": "user", "content": content}]}


def test_a_picture_is_the_same_in_every_protocol(vision: VisionModel) -> None:
    async def play(place: Place) -> None:
        for route in ("/messages", "/responses"):
            reply = await post(place, route, of_protocol(route, f"data:image/png;base64,{data(9)}"))
            assert reply.status_code == 200, reply.text
        assert (await post(place, "/chat/completions", chat(9))).status_code == 200
        first, *others = place.engine.requests
        (shown,) = first.media
        assert shown.length == vision.sizes.num_tokens(shown.picture.height, shown.picture.width)
        assert (np.flatnonzero(first.prompt_ids == vision.image_token) == range(shown.start, shown.end)).all()
        assert shown.picture.array.shape[2] == 3
        assert all(np.array_equal(one.prompt_ids, first.prompt_ids) and one.media == first.media for one in others)

    serve(["nine"], play, encoder=ChatEncoder(build_vision_tokenizer(), vision=vision))


def test_turns_with_pictures_are_one_row_and_another_picture_begins_another(vision: VisionModel) -> None:
    async def play(place: Place) -> None:
        for levels in ((1,), (1, 2), (3, 2)):
            reply = await post(place, "/chat/completions", chat(*levels, said="nine"))
            assert reply.status_code == 200, reply.text
        one, two = place.rows()
        assert (one.input_ids >= 0).all() and [len(row.media) for row in (one, two)] == [2, 2]
        assert [bool((row.response_mask > 0).sum()) for row in (one, two)] == [True, True]
        assert one.media[0].picture != two.media[0].picture and one.media[1].picture == two.media[1].picture
        assert all(each.picture.pixels is None for each in one.media)
        for row in (one, two):
            pads = np.flatnonzero(row.input_ids == vision.image_token)
            assert pads.tolist() == [place for each in row.media for place in range(each.start, each.end)]
        asked = zip(place.engine.sent, place.engine.requests, strict=True)
        check_rows(place.rows(), place.engine, sum(len(sent) - len(request.prompt_ids) for sent, request in asked))

    serve(["nine"], play, encoder=ChatEncoder(build_vision_tokenizer(), vision=vision))


@pytest.mark.parametrize(
    "url", ["https://host.example/a.png", "/etc/passwd", "file:///etc/passwd", "data:image/png;base64,AAAA"]
)
def test_nothing_but_what_the_request_holds_is_opened(url: str, vision: VisionModel) -> None:
    async def play(place: Place) -> list[httpx.Response]:
        return [await post(place, route, of_protocol(route, url)) for route in ("/messages", "/responses")]

    replies = serve(["nine"], play, encoder=ChatEncoder(build_vision_tokenizer(), vision=vision))
    assert [reply.status_code for reply in replies] == [400, 400]


def test_a_model_that_does_not_see_says_so() -> None:
    async def play(place: Place) -> httpx.Response:
        return await post(place, "/chat/completions", chat(9))

    reply = serve(["nine"], play)
    assert reply.status_code == 400 and "reads text only" in reply.text and "rows" not in reply.text
