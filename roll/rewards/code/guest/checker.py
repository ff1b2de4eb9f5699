"""The side of the tests: runs them against an answer that lives in another sandbox.

The names of the answer stand for objects over there. Expected values never leave this process: what comes back from a
call is data, and it is compared here. It says on stderr, in lines of JSON, what became of each test.
"""

import json
import os
import sys
import unittest

from absent import Stub
from files import AcceptsAll, Fault, File, SolutionModule, is_dunder
from remote import Peer, check_arguments
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
        known = sorted(filter(file.is_answers, self._names))
        solution = SolutionModule(self.get, file.starred(known))
        there = {name: self.get(name) for name in known if name in file.takes or name == file.function}
        return solution, {**dict.fromkeys(file.takes, Stub([])), **there}

    def candidate(self, file):
        return self._peer.ask("candidate", file.function)


def is_of_answer(value):
    return type(value) in (Remote, Stub)


class Tests:
    def __init__(self, peer, say, files):
        self._peer, self._say, self._files, self._answer = peer, say, files, None

    def run(self, file, skip):
        """One file: all of it, or its tests after the first `skip`."""
        try:
            empty = self._empty_units(file)
        except Fault as fault:
            self._say("fault", file.index, str(fault))
            return
        try:
            self._peer.begin()
            answer = self._answer = self._answer or Answer(self._peer)
            candidate = (lambda: answer.candidate(file)) if file.function else None
            solution, names = answer.for_file(file)
            units, close = file.load(solution, names, candidate, is_of_answer, BUILT_IN)
        except BaseException as error:
            if self._peer.is_gone:
                self._say("file", file.index, False, "the answer's process ended")
                raise PeerClosed from None
            if isinstance(error, Fault) or file.is_own_import(error):
                self._say("fault", file.index, file.text_of(error))
            else:
                self._say("file", file.index, False, file.text_of(error))
            return
        units = [unit for unit in units if unit.name not in empty]
        if self._peer.is_gone or not units:
            why = "the answer's process ended" if self._peer.is_gone else "it ran no test"
            self._say("file", file.index, file.asserts and not self._peer.is_gone, why)
        else:
            self._say("units", file.index, len(units))
        for unit in units[skip:]:
            self._say("unit", file.index, *self._outcome(file, unit))
            if self._peer.is_gone:
                break
        close()
        if self._peer.is_gone:
            raise PeerClosed

    def _empty_units(self, file):
        """Units that do not count. A file that accepts every result counts beside one that does not."""
        try:
            return file.try_without_answer(self._say, check_arguments)
        except AcceptsAll:
            if not any(self._looks_at_results(other) for other in self._files if other is not file):
                raise
            return set()

    def _looks_at_results(self, file):
        try:
            file.try_without_answer(self._say, check_arguments)
        except AcceptsAll:
            return False
        except Fault:  # which is said in its turn
            return True
        return True

    def _outcome(self, file, unit):
        why = ""
        try:
            self._peer.begin()
            unit.run()
        except BaseException as error:
            why = file.text_of(error)
        if self._peer.is_gone:
            return False, "the answer's process ended"
        return not why, why


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
    if channel.receive() != ["ready"]:
        raise PeerClosed
    say("ready")  # what ends before this is nobody's doing
    os.dup2(1, 2)
    sys.setrecursionlimit(20_000)
    if any("asyncio" in file.text for file in files):
        await_remotes()
    unittest.main = lambda *_, **__: None  # the tests are run anyway
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
        tests = Tests(Peer(channel), say, files)
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
