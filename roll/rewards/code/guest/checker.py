"""The side of the tests: runs them against an answer that lives in another sandbox.

The names of the answer stand for objects over there. Expected values never leave this process: what comes back from a
call is data, and it is compared here. It says on stderr, in lines of JSON, what became of each test.
"""

import importlib
import json
import os
import sys

from files import Fault, File, SolutionModule, Stub, is_dunder
from remote import Peer
from stand_ins import BUILT_IN, Remote
from wire import Channel, PeerClosed


class Answer:
    """The names of the answer, of which one is fetched when it is asked for."""

    def __init__(self, peer):
        self._peer = peer
        self._names = {name: value for name, value in peer.names().items() if not is_dunder(name)}

    def get(self, name):
        exception = self._names[name]
        return self._peer.name(name) if exception is None else exception

    def for_file(self, file):
        """The module `solution` and the names that the file finds without importing them. What the answer does not
        define is a stub, whose use no `raises(Exception)` of the tests takes for the error that it waits for."""
        there = {name: self.get(name) for name in self._names if name in file.takes or name == file.function}
        return SolutionModule(self.get), {**dict.fromkeys(file.takes, Stub()), **there}

    def candidate(self, file):
        return self._peer.ask("candidate", file.function)


def is_of_answer(value):
    return type(value) in (Remote, Stub, SolutionModule)


class Tests:
    def __init__(self, peer, say):
        self._peer, self._say, self._answer = peer, say, None

    def run(self, file, skip):
        """One file: all of it, or its tests after the first `skip`. Faults of the tests are found before the answer is
        asked anything, so no answer makes one."""
        try:
            file.check_imports()
        except Fault as fault:
            self._say("fault", file.index, str(fault))
            return
        try:
            self._peer.begin()
            answer = self._answer = self._answer or Answer(self._peer)
            solution, names = answer.for_file(file)
            module = file.load(solution, names, BUILT_IN)
        except BaseException as error:
            self._say("file", file.index, False, file.text_of(error))
            self._check()
            return
        check = file.check_of(module, (lambda: answer.candidate(file)) if file.function else None)
        if check is not None:
            self._say("units", file.index, 1)
            why = ""
            try:
                self._peer.begin()
                check()
            except BaseException as error:
                why = file.text_of(error)
            self._say_unit(file, not why, why)
        else:
            self._run_pytest(file, module, skip)
        self._check()

    def _check(self):
        if self._peer.is_gone:
            raise PeerClosed

    def _say_unit(self, file, passed, why):
        is_gone = self._peer.is_gone
        self._say("unit", file.index, passed and not is_gone, "the answer's process ended" if is_gone else why)

    def _run_pytest(self, file, module, skip):
        counts, why = [], ""
        if file.collects and not self._peer.is_gone:
            from runner import Run

            def count(number):
                counts.append(number)
                self._say("units", file.index, number)

            why = Run(file, module, is_of_answer, skip, lambda: self._peer.is_asked)(
                count, self._peer.begin, lambda *outcome: self._say_unit(file, *outcome), lambda: self._peer.is_gone
            )
        if not counts:
            why = "the answer's process ended" if self._peer.is_gone else why
            self._say("file", file.index, file.asserts and not why, why or "it ran no test")


def await_remotes():
    """Has asyncio.run take coroutines of the answer too."""
    import asyncio  # takes a while, and few tests need it

    before = asyncio.run

    def run(main, **keywords):
        async def wait():
            return await main

        return before(wait() if type(main) is Remote else main, **keywords)

    asyncio.run = run


def main():
    channel = Channel()
    report = os.fdopen(os.dup(2), "w", encoding="utf-8")

    def say(*message):
        report.write(json.dumps(message) + "\n")
        report.flush()

    with open("/box/cases.json", encoding="utf-8") as file:
        task = json.load(file)
    files = [File(index, function=task["function"], **file) for index, file in enumerate(task["files"])]
    if any(file.collects for file in files):
        importlib.import_module("runner")  # pytest takes a while, and asserts do not need it
    if channel.receive() != ["ready"]:
        raise PeerClosed
    say("ready")  # what ends before this is nobody's doing
    os.dup2(1, 2)
    sys.setrecursionlimit(20_000)
    if any("asyncio" in file.text for file in files):
        await_remotes()
    try:
        channel.send(["load"])
        loaded = channel.receive()
        if loaded != ["ok"]:
            say("broken", reason(loaded))
            return
    except PeerClosed:
        say("gone")
        return
    say("loaded")
    try:
        start, skip = task["start"]
        tests = Tests(Peer(channel), say)
        for file in files[start:]:
            tests.run(file, skip if file.index == start else 0)
    except PeerClosed:
        say("again")


def reason(reply):
    """Why an answer does not load, as its side says."""
    try:
        _, (kind, *_), text = reply
        return f"{kind}: {text}"[:500]
    except (TypeError, ValueError):
        return "its side sent no message"


main()
