"""Models of any backend in processes of their own, so that a crash costs one model.

    server: IsolatedExecutor --> IsolatedProcess ==link== child: the backend's executor

The child loads the model with the ordinary backend and runs its executor. Inputs and outputs go
through shared memory, each with one copy. The processes and messages are those of `shoal.link`.
"""
