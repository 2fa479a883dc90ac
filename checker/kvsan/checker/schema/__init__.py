"""JSON Schemas (draft 2020-12) of what the command line reads and writes: `trace-header`, `trace-op`, `report`.

They are documentation and a contract for other tools. The reader does not use them: it is faster, stricter where a line
depends on the header and on earlier lines (ids within the pool, tokens, `planned`), and refuses a misspelt key.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, Literal

Name = Literal["trace-header", "trace-op", "report"]


def load(name: Name) -> dict[str, Any]:
    """One of the schemas, as a JSON document."""
    text = files(__name__).joinpath(f"{name}.schema.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document
