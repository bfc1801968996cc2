"""Settings of each part of a server, taken from the options.

Only the response cache is opened here, because its address may be wrong.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.access.files import KeyFiles
from shoal.access.tokens import CLAIMS, TokenSettings
from shoal.backends.registry import BackendRegistry
from shoal.cache.registry import open_cache
from shoal.cache.store import CacheStore
from shoal.config.options import Options
from shoal.config.options.checks import INFERENCE_TYPES, PING_MODES, read_size
from shoal.core.buffers import BufferPool
from shoal.engine.local import LocalEngine
from shoal.errors import InvalidArgument, NotFound
from shoal.frontends.access_log import AccessLog
from shoal.frontends.client_limits import ClientLimits, most_connections
from shoal.frontends.clouds.sagemaker import UNSPECIFIED_MODEL, SageMakerSettings
from shoal.frontends.clouds.vertex_ai import VertexAiSettings, find_default_model
from shoal.frontends.console.state import ConsoleState
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.shared_limits import shared_client_limits
from shoal.frontends.tcp import TcpLimits
from shoal.frontends.tls import PemFile, ServerTls, TlsFiles
from shoal.instance import device
from shoal.instance.inline import LoopHandle
from shoal.instance.rate_limiter import RateLimiter, ResourceLimit
from shoal.line_writer import LineWriter
from shoal.link.counters import SharedCounters
from shoal.logs import Log, LogSettings
from shoal.models.spec import ServingContext
from shoal.repository.declared import DeclaredModels, is_model_file
from shoal.repository.layout import find_models, is_single_model, version_folders
from shoal.repository.preparation import PreparationSettings
from shoal.repository.remote import RemoteSource
from shoal.repository.repository import RepositorySettings
from shoal.statistics.custom import COUNTER, GAUGE, CustomFamily, CustomMetrics
from shoal.statistics.machine import MachineReading
from shoal.statistics.metrics_settings import MetricsSettings
from shoal.storage.address import is_address, parse
from shoal.storage.mirrors import Mirrors, StorageSettings
from shoal.storage.progress import SizeCallback
from shoal.storage.source import Source
from shoal.tasks.workers import Workers

logger = logging.getLogger(__name__)


def repository_settings(
    options: Options,
    functions: Sequence[Any],
    backends: BackendRegistry,
    loop: LoopHandle,
    custom: CustomMetrics,
    cache: CacheStore | None,
    task_workers: Callable[[], Workers],
) -> RepositorySettings:
    """Which models the repository loads, from where, and the shared parts they are given."""
    addresses = [text for text in options.model_repository if is_address(text)]
    paths = [text for text in options.model_repository if not is_address(text)]
    files = [Path(path) for path in paths if is_model_file(path)]
    remote = mirrors(options, custom) if addresses else None
    return RepositorySettings(
        paths=[Path(path) for path in paths if not is_model_file(path)],
        mirrors=remote,
        remote=[
            RemoteSource(
                remote.open(text),
                namespaced=options.model_namespacing,
                offline=options.repository_offline == "cached",
            )
            for text in addresses
            if remote is not None
        ],
        control_mode=options.model_control_mode,
        poll_secs=options.repository_poll_secs,
        load_models=options.load_model,
        load_threads=options.model_load_thread_count,
        load_retries=options.model_load_retry_count,
        namespacing=options.model_namespacing,
        memory_budget_bytes=options.model_memory_budget_bytes,
        strict=options.strict_repository,
        preparation=PreparationSettings(
            config_name=options.model_config_name,
            auto_complete=options.auto_complete_config,
            gpu_fallback_cpu=options.gpu_fallback == "cpu",
            backend_settings=options.backend_settings(),
            hold_until=_delayed_scheduler(),
            loop=loop,
            metrics=custom,
            counted=metrics_settings(options).counted,
            execution=options.execution,
            target_latency_ms=options.target_latency_ms,
            isolation=options.default_isolation,
            backends=backends,
            declared=DeclaredModels(files, functions),
            cache=cache,
            limiter=rate_limiter(options),
            task_workers=task_workers,
        ),
    )


def frontend_context(options: Options, loop: LoopHandle) -> ServingContext:
    """What a front-end process provides for the models that it runs itself."""
    return ServingContext(
        loop=loop,
        execution=options.execution,
        target_latency_ms=options.target_latency_ms,
        counted=metrics_settings(options).counted,
        hold_until=_delayed_scheduler(),
    )


def mirrors(
    options: Options,
    custom: CustomMetrics | None = None,
    arrived: Callable[[int], None] = lambda _size: None,
) -> Mirrors:
    """The remote repositories of the options; reads nothing yet.

    `arrived` is called by any thread when bytes have arrived.
    """
    chosen = StorageSettings(
        cache=options.repository_cache,
        cache_bytes=read_size(options.repository_cache_size),
        bytes_per_sec=read_size(options.repository_download_rate),
        threads=options.repository_download_threads,
    )
    families = custom or CustomMetrics()
    downloaded = families.family(
        "shoal_repository_downloaded_bytes_total", "Bytes read from remote repositories", COUNTER
    )
    left = families.family(
        "shoal_repository_download_left_bytes", "Bytes of models in download, still to read", GAUGE
    )

    def change(family: CustomFamily) -> SizeCallback:
        return lambda source, size: family.metric(
            {"repository": str(source.address)}, None
        ).increment(size)

    counted = change(downloaded)

    def count(source: Source, size: int) -> None:
        counted(source, size)
        arrived(size)

    return Mirrors(chosen, downloaded=count, left=change(left))


def cache_store(options: Options) -> CacheStore | None:
    """The response cache of the options. InvalidArgument if it cannot be opened."""
    configured = options.cache_settings()
    if configured is None:
        return None
    name, settings = configured
    return CacheStore(name, open_cache(name, settings))


def rate_limiter(options: Options) -> RateLimiter | None:
    """The limits on resources that instances share, if --rate-limit is on."""
    if options.rate_limit == "off":
        return None
    return RateLimiter([ResourceLimit(*limit) for limit in options.rate_limits()])


def _delayed_scheduler() -> int:
    """TRITONSERVER_DELAY_SCHEDULER: the number of requests a queue waits for (for tests)."""
    text = os.environ.get("TRITONSERVER_DELAY_SCHEDULER", "")
    if text and not text.isdecimal():
        logger.warning("TRITONSERVER_DELAY_SCHEDULER is '%s', not a number; ignored", text)
    return int(text) if text.isdecimal() else 0


def http_options(options: Options) -> HttpOptions:
    """What HTTP clients may request."""
    return HttpOptions(
        max_input_bytes=options.http_max_input_size,
        header_forward_pattern=options.http_header_forward_pattern,
        cors_origins=options.cors,
        model_upload=options.allow_model_upload,
        allowed_hosts=options.http_allowed_hosts,
        restricted_apis=options.http_restrictions(),
        plans=options.plans,
        scheme=options.http_scheme,
    )


def sagemaker(options: Options) -> SageMakerSettings:
    """What SageMaker requests mean, by the environment. Raises InvalidArgument."""
    return SageMakerSettings(
        model=os.environ.get("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME") or UNSPECIFIED_MODEL,
        inference_type=_chosen("SAGEMAKER_TRITON_INFERENCE_TYPE", INFERENCE_TYPES),
        ping_mode=_chosen("SAGEMAKER_TRITON_PING_MODE", PING_MODES),
        max_json_bytes=options.http_max_input_size,
    )


def _chosen(variable: str, choices: Sequence[str]) -> str:
    """The value of an environment variable; by default the first of `choices`."""
    value = os.environ.get(variable) or choices[0]
    if value not in choices:
        raise InvalidArgument(f"{variable} is '{value}'. Must be one of: {', '.join(choices)}")
    return value


def vertex_ai(options: Options) -> VertexAiSettings:
    """The routes of Vertex AI, by the environment. Raises InvalidArgument."""
    routes = {name: os.environ.get(f"AIP_{name}_ROUTE", "") for name in ("PREDICT", "HEALTH")}
    for name, path in routes.items():
        if not path.startswith("/"):
            found = f"is '{path}'" if path else "is not defined for Vertex AI endpoint"
            raise InvalidArgument(
                f"AIP_{name}_ROUTE {found}; set it to a path such as /{name.lower()}, or start "
                "with --allow-vertex-ai=false"
            )
    return VertexAiSettings(routes["PREDICT"], routes["HEALTH"], options.vertex_ai_default_model)


def vertex_ai_model(options: Options, index: Sequence[Mapping[str, str]]) -> str:
    """The default model of Vertex AI, from the index after start-up. Raises InvalidArgument."""
    lazy = options.model_control_mode == "lazy"
    served = {row["name"] for row in index if lazy or row.get("state") == "READY"}
    return find_default_model(options.vertex_ai_default_model, served)


def key_files(options: Options, counters: SharedCounters | None = None) -> KeyFiles | None:
    """The keys of clients, read from their files; None if none are required. Their quotas hold for
    all processes that share `counters`.

    Raises a ShoalError for a file that cannot be used.
    """
    if not options.requires_keys:
        return None
    tokens: TokenSettings | None = None
    if options.jwt_jwks or options.jwt_secret_file:
        claims = {**CLAIMS, **{key: value for _, key, value in options.jwt_claim}}
        tokens = TokenSettings(
            options.jwt_issuer,
            options.jwt_audience,
            options.jwt_jwks,
            options.jwt_secret_file,
            claims,
            options.jwt_default_entry,
        )
    return KeyFiles(
        options.api_keys,
        tokens,
        header=options.api_key_header,
        open_apis=options.open_apis,
        counters=counters,
    )


def open_log(options: Options) -> Log:
    """The log of the options, not installed yet. InvalidArgument if its file cannot be written."""
    chosen = LogSettings(
        log_file=options.log_file,
        log_info=options.log_info,
        log_warning=options.log_warning,
        log_error=options.log_error,
        log_verbose_level=options.log_verbose,
        log_format=options.log_format,
    )
    try:
        return Log(chosen)
    except OSError as error:
        raise InvalidArgument(
            f"cannot write the log to --log-file={options.log_file}: {error.strerror or error}"
        ) from None


def access_log(options: Options) -> AccessLog | None:
    """The access log and the audit log, if one of them is switched on.

    Raises InvalidArgument for a file that cannot be written.
    """
    if not options.access_log and not options.audit_log:
        return None
    return AccessLog(
        LineWriter(options.access_log, "access log") if options.access_log else None,
        LineWriter(options.audit_log, "audit log") if options.audit_log else None,
        log_format=options.access_log_format,
        sample=options.access_log_sample,
    )


def client_limits(
    options: Options, pool: BufferPool, counters: SharedCounters | None = None
) -> ClientLimits:
    """What the clients of all inference ports together may occupy, in all processes that share
    `counters`; large requests are received into memory of `pool`."""
    if counters is not None:
        return shared_client_limits(
            counters,
            max_buffered_bytes=options.max_buffered_bytes,
            max_connections=options.max_connections,
            max_per_address=options.max_connections_per_address,
            most_here=most_connections(),
            pool=pool,
        )
    return ClientLimits.of(
        options.max_buffered_bytes,
        options.max_connections or most_connections(),
        options.max_connections_per_address,
        pool,
    )


def http_limits(options: Options) -> HttpLimits:
    """Size and time limits of HTTP connections."""
    return HttpLimits(
        max_body_bytes=options.http_max_body_size,
        head_timeout_secs=options.http_head_timeout_secs,
        body_idle_timeout_secs=options.http_body_timeout_secs,
        body_total_secs=options.http_body_total_timeout_secs,
        min_rate=options.http_min_rate,
        keepalive_idle_secs=options.http_idle_timeout_secs,
        write_stall_secs=options.http_write_timeout_secs,
    )


def https(options: Options) -> ServerTls | None:
    """TLS of the HTTP and metrics ports, if it is on. InvalidArgument if a file is no good."""
    if not options.https_cert:
        return None
    certificate = PemFile("--https-cert", options.https_cert)
    client_ca = options.https_client_ca
    return ServerTls(
        TlsFiles(
            certificate,
            PemFile("--https-key", options.https_key) if options.https_key else certificate,
            PemFile("--https-client-ca", client_ca) if client_ca else None,
            clients_certified=bool(client_ca),
        ),
        "http/1.1",
    )


def grpc_tls(options: Options) -> ServerTls | None:
    """TLS of the gRPC port, if it is on. InvalidArgument if a file is no good."""
    if not (options.grpc_use_ssl or options.grpc_use_ssl_mutual):
        return None
    needed = options.grpc_use_ssl_mutual or options.grpc_root_cert
    return ServerTls(
        TlsFiles(
            PemFile("--grpc-server-cert", options.grpc_server_cert),
            PemFile("--grpc-server-key", options.grpc_server_key),
            PemFile("--grpc-root-cert", options.grpc_root_cert) if needed else None,
            clients_certified=options.grpc_use_ssl_mutual,
        ),
        "h2",
    )


def console(
    engine: LocalEngine,
    options: Options,
    machine: Callable[[], MachineReading] | None = None,
    started_ms: int = 0,
) -> ConsoleState | None:
    """The state that the web console shows; None if it is switched off."""
    if not options.console:
        return None
    return ConsoleState(
        engine,
        model_control_mode=options.model_control_mode,
        addresses=[str(parse(text)) for text in options.model_repository if is_address(text)],
        cpu=options.allow_cpu_metrics,
        gpu=options.allow_gpu_metrics,
        machine=machine,
        started_ms=started_ms,
    )


def frontend_processes(options: Options) -> int:
    """How many processes serve the ports. InvalidArgument where there can be only one."""
    count = options.frontend_processes or max(1, device.available_cores() // 2)
    if count > 1 and not sys.platform.startswith("linux"):
        raise InvalidArgument(
            "--frontend-processes needs Linux, because its processes pass each other descriptors "
            "and shared memory; leave it out"
        )
    if count > 1 and options.allow_grpc and options.grpc_transport == "grpcio":
        raise InvalidArgument(
            "--grpc-transport=grpcio cannot share its port with other processes; leave it out, or "
            "--frontend-processes"
        )
    return count


def tcp_limits(options: Options) -> TcpLimits:
    """The limits of HTTP apply to TCP, too."""
    return TcpLimits(
        max_object_bytes=options.http_max_input_size,
        idle_secs=options.http_idle_timeout_secs,
        object_idle_secs=options.http_body_timeout_secs,
        min_rate=options.http_min_rate,
        write_stall_secs=options.http_write_timeout_secs,
    )


def metrics_settings(options: Options) -> MetricsSettings:
    """Which metrics are collected and shown. InvalidArgument for unknown settings."""
    settings = MetricsSettings(
        interval_ms=int(options.metrics_interval_ms),
        cpu=options.allow_cpu_metrics,
        gpu=options.allow_gpu_metrics,
    )
    return settings.configured(f"{key}={value}" for _, key, value in options.metrics_config)


def check_repositories(options: Options) -> None:
    """Raises NotFound or InvalidArgument, with the fix, for a path that cannot hold models."""
    for path in options.model_repository:
        if is_address(path):
            continue  # its source has read it, and whether it is reachable is seen at the start
        try:
            mode = Path(path).stat().st_mode
        except FileNotFoundError:
            raise NotFound(f"the model repository '{path}' does not exist") from None
        except OSError as error:
            raise NotFound(
                f"the model repository '{path}' cannot be read: {error.strerror}"
            ) from None
        if not stat.S_ISDIR(mode) and not is_model_file(path):
            raise NotFound(
                f"the model repository '{path}' is a file; name a folder of models, a Python file "
                "(.py) with functions, or a model file (.onnx, .pt …)"
            )
        if stat.S_ISDIR(mode):
            _check_folder(Path(path), may_be_empty=options.model_control_mode != "none")


def _check_folder(path: Path, *, may_be_empty: bool) -> None:
    """Raises InvalidArgument for the folder of one model, or of files that can be served alone."""
    if is_single_model(path):
        files = [file for folder in version_folders(path).values() for file in _model_files(folder)]
        alone = f", or the model alone: shoal serve {files[-1]}" if files else ""
        raise InvalidArgument(
            f"'{path}' is the folder of one model, not of models; serve its parent: "
            f"{path.resolve().parent}{alone}"
        )
    files = _model_files(path)
    if files and not may_be_empty and not find_models([path]):
        raise InvalidArgument(
            f"'{path}' has no folders of models, only files; a file can be served alone: "
            f"shoal serve {files[-1]}"
        )


def _model_files(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if is_model_file(file))
    except OSError:
        return []
