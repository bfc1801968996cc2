"""Repository agents: they check a model's folder before anything in it is used.

    config.pbtxt: model_repository_agents --> each agent, in order --> the model is read and loaded

An agent is a function of the folder and its parameters that raises an error. `checksum` is built
in; installed packages add others through the entry points of the group `shoal.agents`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeAlias

from shoal.config.model import ModelConfig
from shoal.errors import ConfigError, Internal, InvalidArgument, ShoalError

GROUP = "shoal.agents"
_FIELD = "model_repository_agents.agents"
_READ_BYTES = 1 << 20
# The kinds of checksums, by the prefix of the file's name.
_KINDS = {"MD5": "md5", "SHA1": "sha1", "SHA256": "sha256", "SHA512": "sha512"}

Agent: TypeAlias = Callable[[Path, Mapping[str, str]], None]


def run(config: ModelConfig, folder: Path, *, file: str) -> None:
    """Run the agents that `config` names on `folder`.

    Raises ConfigError for an unknown agent, or what an agent raises: the model must not be loaded
    then.
    """
    wanted = config.model_repository_agents
    for index, entry in enumerate(wanted.agents if wanted is not None else ()):
        agent = _find(entry.name, index, file)
        try:
            agent(folder, entry.parameters)
        except ShoalError as error:
            prefix = f"repository agent '{entry.name}' for model '{config.name}': "
            raise error.prefixed(prefix) from error
        except Exception as error:
            raise Internal(
                f"repository agent '{entry.name}' failed for model '{config.name}': "
                f"{type(error).__name__}: {error}"
            ) from error


def checksum(folder: Path, parameters: Mapping[str, str]) -> None:
    """Verify checksums: the parameter `MD5:<file>` is the file's digest in hexadecimal.

    Raises InvalidArgument for the first file that differs or is missing.
    """
    for key, expected in parameters.items():
        kind, _, name = key.partition(":")
        algorithm = _KINDS.get(kind.upper())
        if algorithm is None or not name:
            raise InvalidArgument(
                f"unexpected parameter '{key}'; write <kind>:<file inside the model's folder>, "
                f"where the kind is {', '.join(_KINDS)}"
            )
        found = _digest(folder, name, algorithm)
        if not hmac.compare_digest(found, expected.strip().lower().encode()):
            raise InvalidArgument(
                f"Mismatched {kind.upper()} hash for file {name}: expected {expected.strip()}, "
                f"found {found.decode()}"
            )


def _digest(folder: Path, name: str, algorithm: str) -> bytes:
    root = folder.resolve()
    path = (root / name).resolve()
    if not path.is_relative_to(root):
        raise InvalidArgument(f"file {name} lies outside the model's folder")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    try:
        with path.open("rb") as content:
            while block := content.read(_READ_BYTES):
                digest.update(block)
    except OSError as error:
        raise InvalidArgument(f"cannot read file {name}: {error.strerror}") from None
    return digest.hexdigest().encode()


def _find(name: str, index: int, file: str) -> Agent:
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if name == "checksum":
        return checksum
    if name in installed:
        loaded: Agent = installed[name].load()
        return loaded
    known = ", ".join(sorted({"checksum", *installed}))
    raise ConfigError(
        f"there is no repository agent '{name}'",
        file=file,
        field=f"{_FIELD}[{index}].name",
        fix=f"These are installed: {known}. Agents that are libraries of Triton cannot be used",
    )
