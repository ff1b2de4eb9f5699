"""The first of several rows that say the same stays."""

import unicodedata

from roll.configs.sections.operators import DeduplicateArgs
from roll.features.operators.texts import SAME, deduplicate, ngrams, normalised, normalized_words
from tests.unit.features.operators.rows import context, rows


def test_texts_are_the_same_but_for_case_space_and_spelling() -> None:
    found = deduplicate(
        rows("What is 2+3?", "what  is\n2+3?", "What is 2-3?", "ﬁrst", "First"), DeduplicateArgs(), context()
    )
    assert found == [None, SAME, None, None, SAME]
    assert normalised(" A\t ﬁ\n") == "a fi"
    # But for the Turkish dotless i, whose upper case is that of i.
    for letter in map(chr, (code for code in range(0x30000) if not 0xD800 <= code < 0xE000)):
        spellings = {letter, letter.lower(), unicodedata.normalize("NFD", letter)}
        spellings |= {letter.upper()} if letter != "\u0131" else set()
        assert len(set(map(normalised, spellings))) == 1, letter
    same = rows({"prompt": "p", "answers": ["a"]}, {"prompt": "p", "answers": ["b"]}, {"prompt": "q", "answers": ["a"]})
    assert deduplicate(same, DeduplicateArgs(), context()) == [None, None, None]
    assert deduplicate(same, DeduplicateArgs(part="prompt"), context()) == [None, SAME, None]
    assert deduplicate(same, DeduplicateArgs(part="response"), context()) == [None, None, SAME]
    differ = rows({"prompt": "2", "answers": ["3 4"]}, {"prompt": "2 3", "answers": ["4"]})
    assert deduplicate(differ, DeduplicateArgs(), context()) == [None, None]
    pairs = rows({"prompt": "p", "answers": ["a", "b c"]}, {"prompt": "p", "answers": ["a b", "c"]})
    assert deduplicate(pairs, DeduplicateArgs(), context()) == [None, None]
    assert normalized_words("What is 2+30?") == ["what", "is", "2", "+", "30", "?"]
    assert normalized_words("第一 ab") == ["第", "一", "ab"]
    assert normalized_words("a_第 a\U00020000b") == ["a", "_", "第", "a", "\U00020000", "b"]
    assert len(ngrams(["a", "b", "c", "d"], 3)) == 2
    assert ngrams(["a", "b"], 3) == ngrams(["a", "b"], 2) and not ngrams([], 3)
