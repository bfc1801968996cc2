"""A rule for configs that clients send with a load: they name no file outside the model's folder.

The operator's own configs may: a library of operators or a Python environment for several models.
What a client repeats of such a config is accepted, because clients change a config by reading it
and sending it back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from shoal.config.model import ModelConfig
from shoal.config.rules.fault import Fault
from shoal.config.rules.files import escapes

_FOLDER = "$$TRITON_MODEL_DIRECTORY"
_NAMES_FILES = re.compile(
    r"path|file|dir|folder|librar|env|template|tokenizer|cache", re.IGNORECASE
)
# Their relative paths begin at the server's working directory.
_FROM_WORKING_FOLDER = re.compile(
    r"EXECUTION_ENV_PATH|CPU_EXTENSION_PATH|CACHE_DIR|(session|optimization|ep|mlas)\..*"
)


def client_files(config: ModelConfig, own: ModelConfig) -> Iterator[Fault]:
    """What a client's config names outside the folder; `own` is the config in the folder."""
    known = set(_named(own))
    for field, name, relative in _named(config):
        if (field, name, relative) in known:
            continue
        inner = name.removeprefix(_FOLDER)
        prefixed = inner != name and (not inner or inner.startswith("/"))
        path = inner.lstrip("/") if prefixed else name
        if _leaves(path) or (not relative and not prefixed):
            yield Fault(
                field,
                f"'{name[:100]}' is not inside the model's folder, and a config that a client "
                "sends may name no other files",
                "Name a file in the model's folder, or write this into the model's own config",
            )


def _leaves(path: str) -> bool:
    return path.startswith("~") or "$" in path or escapes("", path)


def _named(config: ModelConfig) -> Iterator[tuple[str, str, bool]]:
    """Field and value of everything that may name a file, and whether it is relative to the
    model's folder."""
    operations = config.model_operations
    for index, name in enumerate(operations.op_library_filename if operations else ()):
        yield f"model_operations.op_library_filename[{index}]", name, True
    for key, value in config.parameters.items():
        if value.string_value and _NAMES_FILES.search(key) and not _is_switch(value.string_value):
            relative = _FROM_WORKING_FOLDER.fullmatch(key) is None
            yield f"parameters['{key}']", value.string_value, relative
    optimization = config.optimization
    accelerators = optimization.execution_accelerators if optimization else None
    if accelerators is not None:
        for kind in ("gpu_execution_accelerator", "cpu_execution_accelerator"):
            for index, accelerator in enumerate(getattr(accelerators, kind)):
                at = f"optimization.execution_accelerators.{kind}[{index}]"
                for key, text in accelerator.parameters.items():
                    if text and _NAMES_FILES.search(key) and not _is_switch(text):
                        yield f"{at}.parameters['{key}']", text, False


def _is_switch(text: str) -> bool:
    """Whether this is a value of a setting like `trt_engine_cache_enable`."""
    return text.lower() in ("0", "1", "true", "false")
