"""Checks of option values that depend on each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from shoal.config.options.option import NamedSetting, OptionError

# The kinds of request that --http-restricted-api and --grpc-restricted-protocol can guard.
CATEGORIES = (
    *("health", "metadata", "inference", "shared-memory", "model-config"),
    *("model-repository", "statistics", "trace", "logging"),
)
# What SAGEMAKER_TRITON_INFERENCE_TYPE and SAGEMAKER_TRITON_PING_MODE may be; the default first.
INFERENCE_TYPES = ("infer", "generate", "generate_stream")
PING_MODES = ("ready", "live")
_ANY_ADDRESS = {"", "0.0.0.0", "::"}

SIZE = r"0*[1-9][0-9]*([KMGTkmgt](iB?)?)?"  # bytes: 1048576, 512M, 4G, 4GiB
MODE = r"0?[0-7]{3}"  # of a file: 600, 0660
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def check_start_models(names: Sequence[str], mode: str) -> None:
    """`--load-model` needs explicit or lazy mode, and `*` excludes other names."""
    if names and mode not in ("explicit", "lazy"):
        raise OptionError(
            f"--load-model={names[0]} needs --model-control-mode=explicit or lazy; "
            f"in mode {mode} every model of the repository is loaded"
        )
    if "*" in names and len(names) > 1:
        other = next(name for name in names if name != "*")
        raise OptionError(
            f"--load-model=* loads every model and cannot be combined with --load-model={other}; "
            "remove one of them"
        )


def read_size(text: str) -> int:
    """The bytes of a text like `4G`, which matches `SIZE`; 0 for ""."""
    if not text:
        return 0
    digits = text.rstrip("KMGTkmgtiB")
    unit = text[len(digits) : len(digits) + 1].upper()
    return int(digits) * int(1024 ** _POWERS[unit])


def check_budget(text: str, mode: str) -> None:
    """A budget unloads models, and only lazy mode loads them again."""
    if text and mode != "lazy":
        raise OptionError(
            f"--model-memory-budget={text} needs --model-control-mode=lazy; in mode {mode} "
            "unloaded models would not be loaded again"
        )
    if text and re.fullmatch(SIZE, text) is None:
        raise OptionError(
            f"--model-memory-budget={text} is not a size; write bytes, such as 1073741824 or 1G"
        )


def check_ports(listeners: Iterable[tuple[str, str, int]]) -> None:
    """No two (flag, address, port) may collide; port 0 takes any free one and never collides."""
    taken: list[tuple[str, str, int]] = []
    for flag, address, port in listeners:
        for other_flag, other_address, other_port in taken:
            meet = address == other_address or _ANY_ADDRESS & {address, other_address}
            if port == other_port and meet:
                raise OptionError(
                    f"{other_flag} and {flag} are both {port}; give each listener a port of its own"
                )
        if port:
            taken.append((flag, address, port))


def check_safe_range(text: str, others: Iterable[tuple[str, str, int]]) -> None:
    """On SageMaker every other (flag, address, port) must be in the range of ports, if one is
    given."""
    if not text:
        return
    first, last = map(int, text.split("-"))
    for flag, _, port in others:
        if not first <= port <= last:
            service = flag.removeprefix("--").removesuffix("-port")
            service = service.upper() if service in ("http", "grpc") else service
            raise OptionError(
                f"The server cannot listen to {service} requests at port {port}, allowed port "
                f"range is [{first}, {last}]; change {flag} or --sagemaker-safe-port-range"
            )


def check_sockets(name: str, allowed: bool, port: int, path: str) -> None:
    """A protocol that is served needs a port or a Unix socket, and a Unix socket needs it."""
    if path and not allowed:
        raise OptionError(
            f"--{name}-unix-socket={path} has no use with --allow-{name}=false; remove one of them"
        )
    if allowed and port < 0 and not path:
        raise OptionError(
            f"--{name}-port=off needs --{name}-unix-socket=<path>; to switch the protocol off, "
            f"write --allow-{name}=false"
        )


def check_socket_files(http: str, grpc: str, mode: str) -> None:
    """Each protocol has a socket of its own."""
    if http and http == grpc:
        raise OptionError(
            f"--http-unix-socket and --grpc-unix-socket are both {http}; give each a path of its "
            "own"
        )
    if re.fullmatch(MODE, mode) is None:
        raise OptionError(f"--unix-socket-mode={mode} is no octal number of permissions; write 660")


def check_https(cert: str, key: str, client_ca: str) -> None:
    """TLS is on with a certificate; the other files need one."""
    for flag, path in (("--https-key", key), ("--https-client-ca", client_ca)):
        if path and not cert:
            raise OptionError(f"{flag}={path} needs --https-cert=<file>: without it HTTP is plain")


def check_tcp(port: int, restricted: Iterable[str]) -> None:
    """The TCP port has no headers, so it cannot be opened if inference requires one."""
    if port >= 0 and "inference" in restricted:
        raise OptionError(
            f"--tcp-port={port} would be open to everyone, while 'inference' is restricted; remove "
            "--tcp-port, or do not restrict 'inference'"
        )


def check_tokens(settings: Mapping[str, object]) -> None:
    """Tokens need a key to verify them, and an issuer and audience that they must have."""
    given = [flag for flag, value in settings.items() if value]
    if not given:
        return
    if not settings["--jwt-jwks"] and not settings["--jwt-secret-file"]:
        raise OptionError(
            f"{given[0]} needs --jwt-jwks or --jwt-secret-file, to verify tokens with"
        )
    for flag in ("--jwt-issuer", "--jwt-audience"):
        if not settings[flag]:
            raise OptionError(
                f"{given[-1]} needs {flag}: a token for another service would be accepted without"
            )


def check_pattern(flag: str, pattern: str) -> None:
    """The value of `flag` must be a regular expression; a leading `(?-i)` makes case matter."""
    try:
        re.compile(pattern.removeprefix("(?-i)"))
    except re.error as error:
        raise OptionError(f"{flag}={pattern} is not a regular expression: {error}") from None


def read_restrictions(flag: str, settings: Iterable[NamedSetting]) -> dict[str, tuple[str, str]]:
    """The (key, value) that each restricted kind of request requires."""
    restrictions: dict[str, tuple[str, str]] = {}
    for kinds, key, value in settings:
        for kind in kinds.split(","):
            if kind not in CATEGORIES:
                raise OptionError(
                    f"{flag} has no kind of request '{kind}'; use {', '.join(CATEGORIES)}"
                )
            if kind in restrictions:
                raise OptionError(
                    f"{flag} names '{kind}' twice; each kind of request can require one header"
                )
            restrictions[kind] = (key, value)
    return restrictions


def read_cache(settings: Iterable[NamedSetting]) -> tuple[str, dict[str, str]] | None:
    """The cache that --cache-config names, with its settings; None if it names none."""
    found: dict[str, dict[str, str]] = {}
    for name, key, value in settings:
        found.setdefault(name, {})[key] = value
    if len(found) > 1:
        raise OptionError(
            f"--cache-config names several caches ({', '.join(found)}), but only one is possible; "
            "keep the settings of one of them"
        )
    return next(iter(found.items()), None)


def read_resource(text: str) -> tuple[str, int, int | None]:
    """The parts of a --rate-limit-resource: name, count, and device if given."""
    name, count, *device = text.split(":")
    return name, int(count), int(device[0]) if device else None


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach a listener on `address`."""
    return address in ("localhost", "::1") or address.startswith("127.")
