"""Debug-mode serving runs of kvsan's own engine: `kvsan run` and `kvsan bisect`.

`trial` serves a workload on a device, watched by a session; `fences` adds an edge to a design; `table` says what came
out. The engine knows nothing of it.
"""
