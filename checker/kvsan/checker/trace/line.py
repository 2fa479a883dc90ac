"""A line of a trace that is an op already, with the keys that this version does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvsan.model.ops import Op


class Line(NamedTuple):
    """`more` is provenance: kept when a trace is converted, never read."""

    op: Op
    more: Mapping[str, Any] = {}
