"""Python models: `class TritonPythonModel` in model.py, unchanged from Triton.

    instance thread --ThreadExecutor--> ModelInstance --> model.py           (no copy)
    instance thread --ProcessExecutor--> child process: ModelInstance --> model.py

`api` is what models import as `triton_python_backend_utils`. It, `instance`, `loading` and the
child's half of `process` need only numpy, because they also run in the Python environments of
models.
"""
