"""Every flag, once: `Options` holds what was asked for, `TABLE` says what can be.

option.py is one row, table.py all of them, values.py reads one value, checks.py has what several
values must agree on.
"""

from __future__ import annotations

from shoal.config.options.option import NamedSetting, Option, OptionError
from shoal.config.options.table import BY_FLAG, TABLE, Options

__all__ = ["BY_FLAG", "TABLE", "NamedSetting", "Option", "OptionError", "Options"]
