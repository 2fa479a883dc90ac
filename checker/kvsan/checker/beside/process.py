"""The process beside an engine's: a session whose lines come by a pipe, and which answers when it is asked.

It is an ordinary session (`session.py`) that checks where it is: what it prints, its incidents and its trace are those
of the engine's process, under that one's number and paths. It ends when it is told to, or when the pipe does: then the
engine's process was killed, or left without its exit handlers, and this one says what was seen.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from typing import Any, BinaryIO

from kvsan.checker.attach.lines import decoded
from kvsan.checker.beside.pipe import (
    ANSWER,
    ASK,
    END,
    ENTER,
    FOLLOW,
    FRAME,
    LEAVE,
    LINES,
    NEWS,
    POOL,
    ROOM,
    START,
    STREAM,
    News,
    Start,
)
from kvsan.checker.session import FIRST, Session

LEFT = "the process ended without a word (killed, or by os._exit): its last lines may not have been seen"


class Process:
    """Takes the frames of one engine's process."""

    def __init__(self, start: Start, answer: BinaryIO) -> None:
        self._answer = answer
        self._first = start.first
        self.session = Session(start.options, suppressions=start.suppressions)
        self.session.pid = start.pid
        self.session.has_begun(start.began)
        self.session.on_certain = self._found
        self._asked = False
        """Whether the engine's process was answered after its last lines: it has said what there is to say."""

    def frame(self, sort: int, data: bytes) -> bool:
        """Whether more are to come."""
        session = self.session
        recorder = session.recorder
        self._asked = sort in (ASK, END)
        if sort == LINES:
            recorder.take_over(decoded(data))
            return True
        what: Any = pickle.loads(data)  # of our own other half
        if sort == POOL:
            recorder.pool(*what)
        elif sort == STREAM:
            recorder.declare(*what)
        elif sort == FOLLOW:
            recorder.follow(*what)
        elif sort == NEWS:
            self._hear(what)
        elif sort == ENTER:
            session.suppressions.enter(what)
        elif sort == LEAVE:
            session.suppressions.leave(session.suppressions.allowed[str(what)])
        elif sort == ASK:
            session.settle_down()
            self._tell()
        elif sort == END:
            session.end(whole=what)
            self._tell()
            return False
        return True

    def left(self) -> None:
        """The pipe has ended and nobody said so."""
        self.session.recorder.ledger.note(LEFT)
        self.session.end(whole=False)
        if not self._asked:
            self.session.say_summary(first=self._first)

    def _hear(self, news: News) -> None:
        session = self.session
        session.about.update(news.about)
        session.recorder.adopt(news.ledger, news.threads)
        session.count_lost()

    def _found(self) -> None:
        """A hazard that is certain: that much is known there even if this process ends before it is asked."""
        self.session.on_certain = None
        self._answer.write(ANSWER.pack(0))
        self._answer.flush()

    def _tell(self) -> None:
        data = pickle.dumps(self.session.account())
        self._answer.write(ANSWER.pack(len(data)) + data)
        self._answer.flush()


def main() -> None:
    """`argv`: the file descriptors to read from and to answer on."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.environ[FIRST] = str(os.getpid())  # paths come as they are to be
    source, answer = open(int(sys.argv[1]), "rb", ROOM), open(int(sys.argv[2]), "wb")  # noqa: SIM115 - to the end
    made: Process | None = None
    try:
        while True:
            head = source.read(FRAME.size)
            if len(head) < FRAME.size:
                break
            size, sort = FRAME.unpack(head)
            data = source.read(size)
            if len(data) < size:
                break
            if sort == START:
                made = Process(pickle.loads(data), answer)
            elif made is not None and not made.frame(sort, data):
                return
        if made is not None:
            made.left()
    except BrokenPipeError:  # nobody waits for an answer
        if made is not None:
            made.left()
    except Exception:
        print("kvsan: FAULT in the process that checks; the verdict is Incomplete", file=sys.stderr)
        traceback.print_exc()
        sys.exit(70)
