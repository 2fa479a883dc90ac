"""The offload engine that ships, and the instrumentation that it ships without.

Nothing is in it yet: the engine comes with its own issue, and until then this portion only holds the name.
"""

__all__: list[str] = []
