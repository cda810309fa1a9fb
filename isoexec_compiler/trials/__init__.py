"""How an op is tried: one op a file, with the calls that laws make of its kernels and, where it can be cut, its ranks.

`calls(attributes, rows, draw)` returns a `Call` by the name of the kernel module's function. `sharded(module,
attributes, name, arguments, size)` returns what `size` simulated ranks compute together (a tensor, a tuple of them, or
None where ranks share nothing), or is absent. `spread` is the same for ranks that share the experts.
"""
