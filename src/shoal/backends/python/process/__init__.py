"""Python models in processes of their own.

    server: ProcessExecutor --> PythonProcess ==link== child: ModelInstance --> model.py

The processes and the messages are those of `shoal.link`. `child` and `remote_host` run in the
child, in whatever Python environment the model has, and need numpy only.
"""
