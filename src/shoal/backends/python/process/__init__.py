"""Python models in processes of their own.

    server: ProcessExecutor --> ChildProcess ==socket== child: ModelInstance --> model.py

Small tensors travel in the messages, large ones through shared memory that only these two
processes know. `bootstrap`, `child`, `channel`, `segments` and `link` run in the child, in
whatever Python environment the model has, and need numpy only.
"""
