"""Python models: `class TritonPythonModel` in model.py, unchanged from Triton.

    instance thread --ThreadExecutor--> ModelInstance --> model.py           (no copy)
    instance thread --ProcessExecutor--> child process: ModelInstance --> model.py

`api` is what models import as `triton_python_backend_utils`. It, `instance`, `loading` and the
child's half of `process` need nothing but numpy, because they also run in the Python environments
that models bring along.
"""
