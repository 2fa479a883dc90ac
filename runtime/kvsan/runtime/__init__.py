"""The offload engine that ships, and the instrumentation that it ships without.

`engine` turns requests into completions on a `device`, with the fences of a `kvsan.model.design.Design` (`issue`,
`cells`, `table`, `flight`) and the decisions of `scheduler`, `transfers`, `pool` and `roles`. `workload`, `language`
and `forward` are what is served: an integer model whose answer any stale byte changes. `serve` serves it. `tracing`
wraps a device from outside; nothing here imports it.
"""
