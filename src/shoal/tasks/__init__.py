"""Tasks: what turns a person's photo or sentence into a model's tensors, and its answer back.

A model whose config says `parameters { key: "task" value { string_value: "…" } }` can be used by
people as well as by programs. `base` is the contract, `registry` knows which tasks there are.
"""
