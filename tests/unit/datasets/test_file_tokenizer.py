"""A tokenizer read from its files alone gives the ids and the texts of transformers."""

from pathlib import Path

import pytest

from roll.datasets.file_tokenizer import file_tokenizer
from roll.models.tokenizer import load_tokenizer

TEXTS = ["What is 1 + 1?", "  two  spaces\n\nsort: c b a \u00e9"]
CONVERSATION = [{"role": "system", "content": "Be short."}, {"role": "user", "content": TEXTS[1]}]
ALL = (
    "{{ bos_token }}{% for m in messages %}{% if not m.content %}{% continue %}{% endif %}{% generation %}"
    "{{ m | tojson(indent=1) }}{% endgeneration %}{% endfor %}{{ tools | tojson }}{{ own }}"
    "{% if add_generation_prompt %}>{% endif %}"
)


def test_ids_and_texts_are_those_of_transformers(tiny_model_dir: Path) -> None:
    theirs, ours = load_tokenizer(str(tiny_model_dir)), file_tokenizer(tiny_model_dir, "tiny")
    assert ours is not None
    for adds in (True, False):
        ids = theirs(TEXTS, add_special_tokens=adds)["input_ids"]
        assert ours(TEXTS, add_special_tokens=adds)["input_ids"] == ids
        assert ours(TEXTS[0], add_special_tokens=adds)["input_ids"] == ids[0]
        assert ours.decode(ids[1]) == theirs.decode(ids[1])
    for source, tools in ((None, None), (ALL, [{"type": "function", "function": {"name": "f"}}])):
        keys = {"tools": tools, "chat_template": source, "add_generation_prompt": True, "own": "x"}
        texts = [each.apply_chat_template(CONVERSATION, tokenize=False, **keys) for each in (ours, theirs)]
        assert texts[0] == texts[1]
    assert ours.get_vocab() == theirs.get_vocab() and ours.eos_token_id == theirs.eos_token_id
    assert ours.all_special_ids == theirs.all_special_ids


@pytest.mark.parametrize("content", [None, "no JSON"])
def test_a_folder_without_a_readable_tokenizer_json_is_left_to_transformers(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    assert file_tokenizer(tmp_path, "x") is None
