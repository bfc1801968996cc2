"""Triton's name for `shoal.tritonserver`, and for each of its modules."""

import sys

import shoal.tritonserver as _ours

for _name, _module in sys.modules.copy().items():
    if _name.startswith(_ours.__name__ + "."):
        sys.modules[__name__ + _name.removeprefix(_ours.__name__)] = _module
for _name in _ours._api.__all__:  # modules that have other names with us
    sys.modules[f"{__name__}._api.{_name}"] = getattr(_ours._api, _name)
sys.modules[__name__] = _ours
