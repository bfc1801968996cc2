"""Tasks: convert a photo, question or text to a model's tensors, and its outputs to JSON.

A model's config names its task: `parameters { key: "task" value { string_value: "…" } }`. `base` is
the contract, `registry` finds the installed tasks.
"""
