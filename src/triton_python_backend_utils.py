"""The module that Python models import; see `shoal.backends.python.api`."""

from shoal.backends.python.api import *  # noqa: F403
