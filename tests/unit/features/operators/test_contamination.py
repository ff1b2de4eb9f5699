"""Rows that share n-grams with what the run is evaluated on."""

from roll.configs.sections.operators import ContaminationArgs
from roll.features.operators.texts import contamination
from tests.unit.features.operators.rows import context, rows

EVALUATION = {"validation.data_args": ["one two three four five", "hi"]}


def taken(text: str, **args: object) -> bool:
    (verdict,) = contamination(rows(text), ContaminationArgs.model_validate({"ngram": 3, **args}), context(EVALUATION))
    assert verdict in (None, "shares 3 words with validation.data_args")
    return verdict is not None


def test_shared_ngrams_are_found() -> None:
    assert taken("say ONE two, no: two three four") and taken("one two three")
    assert not taken("one two four three five")
    # The evaluation's row has three 3-grams.
    assert taken("zero one two three four", share=0.6) and not taken("zero one two three four", share=0.7)
    assert taken("one two three four five six", share=1.0)
    assert taken("Hi") and not taken("hi there") and not taken("say hi to all")
