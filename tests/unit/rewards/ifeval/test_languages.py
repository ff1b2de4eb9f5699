"""Instructions about languages; they need py3langid."""

import pytest

from roll.rewards.ifeval.instructions import INSTRUCTIONS
from tests.helpers.cases import cases

pytest.importorskip("py3langid", reason="languages are told by py3langid: pip install py3langid")

SAMPLES = {
    "en": "The weather is nice today and we are going to the park.",
    "es": "El tiempo es agradable hoy y vamos al parque.",
    "pt": "O tempo está bom hoje e nós vamos ao parque.",
    "fr": "Il fait beau aujourd'hui et nous allons au parc.",
    "de": "Das Wetter ist heute schön und wir gehen in den Park.",
    "it": "Oggi il tempo è bello e andiamo al parco.",
    "pl": "Dzisiaj jest ładna pogoda i idziemy do parku.",
    "fi": "Tänään on kaunis sää ja me menemme puistoon.",
    "sw": "Hali ya hewa ni nzuri leo na tunakwenda kwenye bustani.",
    "vi": "Hôm nay thời tiết đẹp và chúng tôi đi công viên.",
    "ru": "Сегодня хорошая погода, и мы идём в парк.",
    "ja": "今日は天気が良いので公園に行きます。",
    "ko": "오늘 날씨가 좋아서 우리는 공원에 갑니다.",
    "zh": "今天天气很好，我们去公园。",
    "ar": "الطقس جميل اليوم ونحن ذاهبون إلى الحديقة.",
    "hi": "आज मौसम अच्छा है और हम पार्क जा रहे हैं।",
}


@pytest.mark.parametrize("code", SAMPLES)
@pytest.mark.parametrize("asked", ["en", "fr", "ru", "zh", "ar"])
def test_a_response_is_in_one_language_and_no_other(code: str, asked: str) -> None:
    in_language = INSTRUCTIONS["language:response_language"]
    assert in_language(SAMPLES[code], language=code) is True
    assert in_language(SAMPLES[code], language=asked) is (code == asked)
    assert in_language(SAMPLES[code].upper(), language=code) is True, "capitals do not mislead"


def test_languages_are_told_alike_every_time() -> None:
    assert INSTRUCTIONS["language:response_language"](SAMPLES["zh"], language="zh-cn")
    assert INSTRUCTIONS["language:response_language"](SAMPLES["pt"], language="PT-br")
    in_language = INSTRUCTIONS["language:response_language"]
    for text in ("hello, how are you?", "no", "Oslo Berlin Paris"):
        assert len({tuple(in_language(text, language=code) for code in SAMPLES) for _ in range(20)}) == 1
    assert INSTRUCTIONS["language:response_language"]("123 ...", language="fr") is True
    assert INSTRUCTIONS["change_case:english_capital"]("123") is False


@cases("name, text, follows")
def test_english_in_capitals_or_in_small_letters(name: str, text: str, follows: bool) -> None:
    assert INSTRUCTIONS[name](text) is follows
