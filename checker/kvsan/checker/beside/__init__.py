"""The check beside the engine: what debug mode costs the engine is what it takes to name a line and to hand it over.

An engine of Python has one interpreter lock, and its step is mostly host time: whatever is worked out in its process is
added to the step (`docs/performance.md`). So the process's session leaves everything that follows from a line to a
process of its own (`process.py`): the check, the incident ring, the trace, the reports. Lines go there by a pipe, some
hundred at a time (`pipe.py`). It is the same code as in the engine's process, on the same lines, and its answer is
the same; what it finds it says a little later.

Nothing is left out: if the pipe is full, the engine waits. If the engine's process is killed, the other one
says what it saw and that the end was not seen. If the other one is killed, kvsan is off and the verdict Incomplete.

Not beside: a session with `halt_on_error`, which has to stop the very call that races; the binary log without a check,
which costs less than the pipe; sessions that code makes and asks (`Session`, without `start`).
"""
