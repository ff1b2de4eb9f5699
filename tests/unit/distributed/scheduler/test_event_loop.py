"""The event loop of rollouts, in real and virtual time."""

import asyncio

import pytest

from roll.distributed.scheduler import event_loop
from roll.distributed.scheduler.event_loop import EventLoopThread
from roll.errors import TaskError
from roll.utils.background import BackgroundTasks


def test_what_would_end_the_loop_ends_the_call_that_waits_for_it_only():
    thread = EventLoopThread("escapes")

    async def leaves(error: BaseException) -> None:
        raise error

    for error in (KeyboardInterrupt("as Ctrl-C"), SystemExit(3)):
        with pytest.raises(TaskError, match=f"{type(error).__name__}: {error}"):
            thread.run(leaves(error))
    assert thread.run(asyncio.sleep(0, "alive")) == "alive"
    thread.close()


@pytest.mark.parametrize("how", ["task", "escape", "callback", "loop"])
def test_what_fails_with_nobody_to_tell_ends_the_run_with_its_cause(how: str):
    """A task that nobody awaits, one that would end the loop, a callback, and the end of the loop itself: whoever waits
    meanwhile would wait for ever."""
    thread = EventLoopThread("lost")
    tasks = BackgroundTasks()

    async def fails(error: BaseException) -> None:
        await asyncio.sleep(0.01)
        raise error

    def raises(error: BaseException) -> None:
        raise error

    async def waits() -> None:
        match how:
            case "task":
                tasks.start(fails(ZeroDivisionError("no room")))
            case "escape":
                tasks.start(fails(SystemExit("no room")))
            case "callback":
                asyncio.get_running_loop().call_later(0.01, raises, ZeroDivisionError("no room"))
            case "loop":
                asyncio.get_running_loop().call_later(0.01, raises, KeyboardInterrupt("no room"))
        await asyncio.Event().wait()

    with pytest.raises(TaskError, match="no room"):
        thread.run(waits())
    with pytest.raises(TaskError, match="no room"):  # the run cannot go on by asking again
        thread.run(asyncio.sleep(0))
    thread.close()


def test_who_waits_looks_after_something_meanwhile_and_what_that_raises_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_loop, "_LOOK_S", 0.01)
    thread = EventLoopThread("meanwhile")
    is_due = asyncio.Event()
    looks: list[str] = []

    async def set_due() -> None:
        is_due.set()

    def look() -> None:
        looks.append("look")
        if len(looks) == 2:
            thread.run(set_due())

    def fail() -> None:
        raise TaskError("no engine comes back")

    with thread.meanwhile(look):
        assert thread.run(is_due.wait()) is True
    assert len(looks) >= 2
    with pytest.raises(TaskError, match="no engine comes back"), thread.meanwhile(fail):
        thread.run(asyncio.Event().wait())
    num_looks = len(looks)
    assert thread.run(asyncio.sleep(0.05, "alone")) == "alone"
    assert len(looks) == num_looks
    thread.close()
