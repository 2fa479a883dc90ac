"""Reading and writing the interchange trace (`TRACE.md`): one JSON object a line, in the order of issue."""

from kvsan.checker.trace.header import Expects, Header, TraceError, Unseen
from kvsan.checker.trace.reader import Trace, from_objects, open_trace
from kvsan.checker.trace.writer import TraceWriter

__all__ = ["Expects", "Header", "Trace", "TraceError", "TraceWriter", "Unseen", "from_objects", "open_trace"]
