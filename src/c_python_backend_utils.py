"""The other name under which models know `triton_python_backend_utils`."""

from shoal.backends.python.api import *  # noqa: F403
