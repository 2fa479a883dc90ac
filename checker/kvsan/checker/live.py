"""The checker as a sink: feeds a running engine's ops to `Online`, collects what it finds, counts what was seen.

`KvsanHazard` is what `halt_on_error` raises in the engine's thread.
"""

from __future__ import annotations


class KvsanHazard(RuntimeError):  # noqa: N818 - a finding, not an error of kvsan
    """A hazard, raised where its later access was issued. The message is the report in words."""
