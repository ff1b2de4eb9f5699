import weakref

from roll.rl.records.token_records import Once


def test_the_call_is_made_once_and_lets_go_of_what_it_needed() -> None:
    class Needed:
        pass

    needed, calls = Needed(), []
    seen = weakref.ref(needed)
    once = Once(lambda held=needed: calls.append(1) or held is not None)
    del needed
    assert not calls and seen() is not None
    assert once() and once()
    assert calls == [1] and seen() is None
