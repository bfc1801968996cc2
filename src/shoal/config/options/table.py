"""Every flag of the command line, written once: the fields of `Options` are the table.

    a field  -->  TABLE row  -->  parser (cli/arguments.py), help (cli/help.py), warnings

The attribute gives the flag its name (`http_port` is `--http-port`), the field gives type and
default, and the group that makes the field carries the help and the rules for its value. The flags
of Triton are all here, because deployments pass fixed lists of them; a flag that changes nothing
says why in `no_effect`, and the server repeats that in a warning if it is set.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shoal.config.options import checks, trace
from shoal.config.options.option import Group, NamedSetting, Option, OptionError

PORT = (0, 65535)

# What a NamedSetting is read from. A name may be left out where the setting can hold for all.
_FOR_ONE_OR_ALL = r"(?:(?P<name>[^,=]*),)?(?P<key>[^=]+)=(?P<value>.+)"
_FOR_ONE = r"(?P<name>[^,=]+),(?P<key>[^=]+)=(?P<value>.+)"
_FOR_ALL = r"(?P<key>[^,=]+)=(?P<value>.+)"
_RESTRICTION = r"(?P<name>[^:=]+):(?P<key>[^=]+)=(?P<value>.+)"

_server = Group("Server")
_logging = Group("Logging")
_repository = Group("Model repository")
_http = Group("HTTP")
_grpc = Group("gRPC")
_tcp = Group("Questions over TCP")
_speed = Group("Speed")
_metrics = Group("Metrics")
_backend = Group("Backends")
_device = Group("Memory and devices", no_effect="the runtimes manage memory and devices")
_shared = Group("Shared memory")
_keys = Group("Keys and tokens")
_cache = Group("Response cache")
_rate = Group("Rate limiter")
_trace = Group("Tracing")
_agent = Group("Repository agents", no_effect="agents are Python packages")
_sagemaker = Group("SageMaker")
_vertex = Group("Vertex AI")
_deprecated = Group("Deprecated")


@dataclass(frozen=True)
class Options:
    """All options of the server. Creating one checks combinations of values:
    OptionError names the flags that do not go together."""

    id: str = _server("triton", "Name the server reports in its metadata.")
    demo: bool = _server(False, "Serve the demo models (pip install 'shoal[demo]').", bare=True)
    exit_timeout_secs: int = _server(
        30,
        "Seconds to wait at exit for requests in flight; after that the server exits with 1.",
        limits=(0, None),
    )
    max_buffered_bytes: int = _server(
        4 << 30,
        "Maximum bytes of large requests and unread responses that are kept in memory for all "
        "clients together; beyond it requests get 503 or RESOURCE_EXHAUSTED.",
        form="<bytes>",
        limits=(1, None),
    )
    max_connections: int = _server(
        0,
        "Maximum number of clients connected to the HTTP, gRPC and TCP ports together; 0 allows as "
        "many as the limit of open files, less a reserve.",
        limits=(0, None),
    )
    max_connections_per_address: int = _server(
        0,
        "Maximum number of connections from one address; 0 sets no limit.",
        limits=(0, None),
    )
    unix_socket_mode: str = _server(
        "600",
        "Permissions of Unix sockets: 600 lets only the user of the server connect, 660 also its "
        "group, 666 everyone.",
        form="<octal number>",
        pattern=checks.MODE,
        empty=False,
    )
    health_port: int = _server(
        -1,
        "Port for probes: plain HTTP that serves the health of server and models and nothing "
        "else; 0 takes a free one, off (-1) opens none.",
        limits=(-1, 65535),
        words={"off": -1},
    )
    health_address: str = _server(
        "",
        "Address to listen on for probes; default: that of --http-address.",
        form="<address>",
    )
    frontend_processes: int = _server(
        1,
        "Processes that serve the ports: they read, decode and answer requests for one engine "
        "process, which has the models; auto (0) takes half of the cores. With 1 everything is "
        "one process. Needs Linux.",
        limits=(0, 64),
        words={"auto": 0},
    )
    drain_secs: float = _server(
        0.0,
        "Seconds to continue serving after SIGTERM while reporting not ready, so that load "
        "balancers notice before connections are refused.",
        limits=(0, None),
    )

    # Their defaults can be set for a whole test run, whichever way its servers are started.
    execution: str = _speed(
        os.environ.get("SHOAL_EXECUTION", "auto"),
        "Where models run that do not set it themselves: on the event loop, on threads, or "
        "chosen by their measured execution time.",
        choices=("auto", "loop", "threads"),
    )
    target_latency_ms: float = _speed(
        0.0,
        "Refuse requests at once that a model could not answer within this time, for models that "
        "do not set it themselves; 0 refuses none.",
        form="<milliseconds>",
        limits=(0, None),
    )
    plans: bool = _speed(
        os.environ.get("SHOAL_PLANS", "true") == "true",
        "Let requests that match the template of an earlier request skip parsing and validation.",
    )

    model_repository: tuple[str, ...] = _repository(
        (),
        "Folder with one folder per model, Python file with functions, model file, checkpoint "
        "folder of transformers, or address of a remote repository (s3://, gs://, as://, https://, "
        "hf://); the same as a PATH on the command line.",
        form="<path>",
        aliases=("--model-store",),
        empty=False,
    )
    model_name: str = _repository(
        "",
        "Name of the model, where a repository is one model and not a folder of models: a model "
        "file, the folder of one model, or a checkpoint [default: that of the file or folder].",
        form="<name>",
        empty=False,
    )
    checkpoint_cache: str = _repository(
        "",
        "Folder in which the models are kept that are made from checkpoints on their first use "
        "[default: ~/.cache/shoal/checkpoints].",
        form="<path>",
        empty=False,
    )
    model_control_mode: str = _repository(
        "none",
        "When models are loaded: all at start (none); all at start and again when a folder "
        "changes (poll); only those named by --load-model and the load API (explicit); each at "
        "its first request (lazy).",
        choices=("none", "poll", "explicit", "lazy"),
    )
    load_model: tuple[str, ...] = _repository(
        (),
        "Model to load at start in explicit or lazy mode; '*' alone means all of them.",
        form="<name>",
        empty=False,
    )
    model_memory_budget: str = _repository(
        "",
        "Memory for all models in lazy mode, in bytes or as 512M or 4G; beyond it, the least "
        "recently used models are unloaded.",
        form="<bytes>[K|M|G|T]",
        pattern=checks.SIZE,
        empty=False,
    )
    repository_poll_secs: float = _repository(
        15.0, "Seconds between two checks of the repository in poll mode.", limits=(0.1, None)
    )
    repository_cache: str = _repository(
        "",
        "Folder in which files of remote repositories are kept; by default the folder that "
        "TRITON_AWS_MOUNT_DIRECTORY, TRITON_GCS_MOUNT_DIRECTORY or TRITON_AZURE_MOUNT_DIRECTORY "
        "names, or shoal/repositories in the user's cache folder.",
        form="<folder>",
        empty=False,
    )
    repository_cache_size: str = _repository(
        "",
        "Size of that folder, in bytes or as 512M or 20G; beyond it, the files that were not used "
        "for the longest time are deleted. By default there is no limit.",
        form="<bytes>[K|M|G|T]",
        pattern=checks.SIZE,
        empty=False,
    )
    repository_offline: str = _repository(
        "fail",
        "What happens if a remote repository cannot be reached at the start: the server exits, or "
        "starts with the models in the cache (cached).",
        choices=("fail", "cached"),
    )
    repository_download_rate: str = _repository(
        "",
        "Bytes per second of all downloads from remote repositories together, such as 100M. By "
        "default there is no limit.",
        form="<bytes>[K|M|G|T]",
        pattern=checks.SIZE,
        empty=False,
    )
    repository_download_threads: int = _repository(
        32, "Requests to remote repositories at a time.", limits=(1, 1024)
    )
    exit_on_error: bool = _repository(True, "Exit with 1 if a model fails to load at start.")
    strict_readiness: bool = _repository(
        True, "Report ready only while all models that should be loaded can serve."
    )
    strict_repository: bool = _repository(
        False,
        "Report ready only while all model repositories, and the folders of loaded models, can be "
        "read. Models that are loaded serve on in any case.",
    )
    disable_auto_complete_config: bool = _repository(
        False, "Use each config.pbtxt as it is instead of completing it from the model.", bare=True
    )
    model_config_name: str = _repository(
        "",
        "Read configs/<name>.pbtxt instead of config.pbtxt for each model that has it.",
        form="<name>",
        pattern=r"\S+",
        empty=False,
    )
    model_load_thread_count: int = _repository(
        4, "How many models may load at the same time.", limits=(1, None)
    )
    model_load_retry_count: int = _repository(
        0, "How often a failed load is retried.", limits=(0, None)
    )
    allow_model_upload: str = _repository(
        "auto",
        "Let clients load models from files that they send, which the server then runs. auto "
        "allows it to clients on the same machine that come through no proxy.",
        choices=("auto", "true", "false"),
    )
    model_namespacing: bool = _repository(
        False,
        "Allow models of the same name in different repositories.",
    )

    allow_http: bool = _http(True, "Listen for HTTP requests.")
    http_address: str = _http("0.0.0.0", "Address to listen on for HTTP.", form="<address>")
    http_port: int = _http(
        8000,
        "Port for HTTP requests; 0 takes a free one, off (-1) opens none: with --http-unix-socket.",
        limits=(-1, 65535),
        words={"off": -1},
    )
    http_unix_socket: str = _http(
        "", "Unix socket to listen on for HTTP, as well as on the port.", form="<path>", empty=False
    )
    reuse_http_port: bool = _http(
        False, "Share the port with other servers that set this flag too (SO_REUSEPORT)."
    )
    https_cert: str = _http(
        "",
        "PEM file with the certificate, and those of its issuers: HTTP and metrics are served "
        "over TLS only.",
        form="<file>",
        empty=False,
    )
    https_key: str = _http(
        "",
        "PEM file with the private key, without a passphrase; default: that of --https-cert.",
        form="<file>",
        empty=False,
    )
    https_client_ca: str = _http(
        "",
        "PEM file with certificates of authorities: clients of HTTPS must have a certificate of "
        "one of them.",
        form="<file>",
        empty=False,
    )
    http_header_forward_pattern: str = _http(
        "",
        "Pass request headers whose name matches this regular expression to the model as "
        "parameters.",
        form="<regex>",
    )
    http_max_input_size: int = _http(
        64 << 20,
        "Maximum bytes of JSON, of one decoded tensor, or of a body after decompression.",
        form="<bytes>",
        limits=(1, None),
    )
    http_restricted_api: tuple[NamedSetting, ...] = _http(
        (),
        "Serve these kinds of requests only if the header <key> has this value; the kinds are "
        + ", ".join(checks.CATEGORIES)
        + ".",
        form="<kind>[,<kind>...]:<key>=<value>",
        pattern=_RESTRICTION,
    )
    cors: tuple[str, ...] = _http(
        (),
        "Web page origin whose scripts may call the server; '*' allows every page.",
        form="<origin>",
        pattern=r"\*|null|[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s]+",
        empty=False,
    )
    http_allowed_hosts: tuple[str, ...] = _http(
        (),
        "Host name by which web pages, and so the console, may reach the server, with a port or "
        "for all ports; '*' allows every name. Loopback names and addresses always work.",
        form="<name>[:<port>][,<name>...]",
        pattern=r"[^\s/@]+",
        empty=False,
    )
    console: bool = _http(True, "Serve the web console to browsers at /.")
    http_max_body_size: int = _http(
        2 << 30,
        "Maximum bytes of a request body including tensors.",
        form="<bytes>",
        limits=(1, None),
    )
    http_head_timeout_secs: float = _http(
        30.0,
        "Seconds in which a client must send the head of a request; 0 sets no limit.",
        limits=(0, None),
    )
    http_body_timeout_secs: float = _http(
        60.0,
        "Seconds that a client may pause within a request body; 0 sets no limit.",
        limits=(0, None),
    )
    http_body_total_timeout_secs: float = _http(
        3600.0,
        "Seconds in which a client must send a whole request body; 0 sets no limit.",
        limits=(0, None),
    )
    http_min_rate: float = _http(
        500.0,
        "Minimum bytes per second at which a client must send a request body and read a response, "
        "apart from one permitted pause; 0 sets no limit.",
        form="<bytes>",
        limits=(0, None),
    )
    http_write_timeout_secs: float = _http(
        60.0,
        "Seconds that a client may leave a response unread; 0 sets no limit.",
        limits=(0, None),
    )
    http_idle_timeout_secs: float = _http(
        600.0,
        "Seconds that a connection may stay open without a request; 0 sets no limit.",
        limits=(0, None),
    )
    http_thread_count: int = _http(
        8,
        "Threads that handle HTTP requests.",
        limits=(1, None),
        no_effect="one event loop handles every connection",
    )

    allow_grpc: bool = _grpc(True, "Listen for gRPC requests.")
    grpc_address: str = _grpc("0.0.0.0", "Address to listen on for gRPC.", form="<address>")
    grpc_port: int = _grpc(
        8001,
        "Port for gRPC requests; 0 takes a free one, off (-1) opens none: with --grpc-unix-socket.",
        limits=(-1, 65535),
        words={"off": -1},
    )
    grpc_unix_socket: str = _grpc(
        "", "Unix socket to listen on for gRPC, as well as on the port.", form="<path>", empty=False
    )
    reuse_grpc_port: bool = _grpc(
        False, "Share the port with other servers that set this flag too."
    )
    grpc_transport: str = _grpc(
        "native",
        "Implementation of gRPC: Shoal's own HTTP/2, or the package grpcio, which must be "
        "installed.",
        choices=("native", "grpcio"),
    )
    grpc_header_forward_pattern: str = _grpc(
        "",
        "Pass request metadata whose key matches this regular expression to the model as "
        "parameters.",
        form="<regex>",
    )
    grpc_infer_thread_count: int = _grpc(
        2,
        "Threads that handle inference calls.",
        limits=(2, 128),
        no_effect="one event loop handles every connection",
    )
    grpc_infer_allocation_pool_size: int = _grpc(
        8,
        "How many request and response objects are kept for reuse.",
        limits=(0, None),
        no_effect="Shoal has no such pool",
    )
    grpc_max_response_pool_size: int = _grpc(
        2**31 - 1,
        "Maximum number of responses that may wait to be sent.",
        limits=(1, None),
        no_effect="a stream is not read while its responses wait",
    )
    grpc_max_request_bytes: int = _grpc(
        64 << 20,
        "Maximum bytes of a compressed message after decompression, and of an inference request "
        "besides its raw tensors; a message that is not compressed may have 2 GiB.",
        form="<bytes>",
        limits=(1, 2**31 - 1),
    )
    grpc_write_timeout_secs: float = _grpc(
        120.0,
        "Seconds that a client may leave a response unread; 0 sets no limit.",
        limits=(0, None),
    )
    grpc_use_ssl: bool = _grpc(False, "Encrypt connections with TLS.")
    grpc_use_ssl_mutual: bool = _grpc(
        False, "Encrypt with TLS and require a certificate from clients."
    )
    grpc_server_cert: str = _grpc("", "PEM file with the certificate.", form="<file>")
    grpc_server_key: str = _grpc("", "PEM file with the private key.", form="<file>")
    grpc_root_cert: str = _grpc("", "PEM file with the clients' root certificate.", form="<file>")
    grpc_infer_response_compression_level: str = _grpc(
        "none",
        "Compression level of inference responses.",
        choices=("none", "low", "medium", "high"),
    )
    grpc_keepalive_time: int = _grpc(
        7_200_000, "Milliseconds without traffic before a ping is sent.", limits=(0, None)
    )
    grpc_keepalive_timeout: int = _grpc(
        20_000, "Milliseconds to wait for the response to a ping.", limits=(0, None)
    )
    grpc_keepalive_permit_without_calls: bool = _grpc(
        False, "Also send pings while no call is running."
    )
    grpc_http2_max_pings_without_data: int = _grpc(
        2,
        "Maximum number of pings while there is no data to send; 0 sets no limit.",
        limits=(0, None),
    )
    grpc_http2_min_recv_ping_interval_without_data: int = _grpc(
        300_000,
        "Minimum milliseconds between a client's pings while it sends no data.",
        limits=(0, None),
    )
    grpc_http2_max_ping_strikes: int = _grpc(
        2,
        "How many too frequent pings are allowed before the connection is closed; 0 sets no limit.",
        limits=(0, None),
    )
    grpc_max_connection_age: int = _grpc(
        0,
        "Milliseconds after which a connection is closed once its calls have ended, give or take "
        "a tenth, so that clients connect again and spread over servers; 0 sets no limit.",
        limits=(0, None),
    )
    grpc_max_connection_age_grace: int = _grpc(
        0,
        "Milliseconds in which a connection of the maximum age may finish its calls; 0 sets no "
        "limit.",
        limits=(0, None),
    )
    grpc_restricted_protocol: tuple[NamedSetting, ...] = _grpc(
        (),
        "Serve these kinds of calls only if the metadata triton-grpc-protocol-<key> has this "
        "value; the kinds are those of --http-restricted-api.",
        form="<kind>[,<kind>...]:<key>=<value>",
        pattern=_RESTRICTION,
    )

    tcp_port: int = _tcp(
        -1,
        "Port for questions as JSON objects over TCP, usually 9999; 0 takes a free one, off "
        "(-1) opens none.",
        limits=(-1, 65535),
        words={"off": -1},
    )
    tcp_address: str = _tcp(
        "0.0.0.0", "Address to listen on for questions over TCP.", form="<address>"
    )

    allow_metrics: bool = _metrics(True, "Serve Prometheus metrics.")
    allow_cpu_metrics: bool = _metrics(True, "Include CPU and memory usage.")
    allow_gpu_metrics: bool = _metrics(True, "Include the usage of NVIDIA GPUs.")
    metrics_address: str = _metrics(
        "",
        "Address to listen on for metrics; default: that of --http-address.",
        form="<address>",
    )
    metrics_port: int = _metrics(8002, "Port for metrics; 0 takes a free one.", limits=PORT)
    metrics_interval_ms: float = _metrics(
        2000.0, "Milliseconds between two readings of machine metrics.", limits=(1, None)
    )
    metrics_config: tuple[NamedSetting, ...] = _metrics(
        (),
        "Select kinds of metrics: counter_latencies, summary_latencies, summary_quantiles or "
        "histogram_latencies.",
        form="<key>=<value>",
        pattern=_FOR_ALL,
    )

    log_verbose: int = _logging(
        0,
        "Level of detail to log, 0 for none; true and false mean 1 and 0.",
        limits=(0, None),
        words={"true": 1, "false": 0},
    )
    log_info: bool = _logging(True, "Log informational lines.")
    log_warning: bool = _logging(True, "Log warnings.")
    log_error: bool = _logging(True, "Log errors.")
    log_format: str = _logging(
        "default",
        "Format of a line: I0809 10:19:07.015127 ... (default), 2024-08-09T10:19:07Z I ... "
        "(ISO8601) or an object (json).",
        choices=("default", "ISO8601", "json"),
    )
    log_file: str = _logging("", "Log to this file instead of stderr.", form="<file>")
    access_log: str = _logging(
        "", "Write a line for each request to this file; - is standard output.", form="<file>"
    )
    access_log_format: str = _logging(
        "common",
        "Format of the access log: common, as web servers have it, or json.",
        choices=("common", "json"),
    )
    access_log_sample: float = _logging(
        1.0, "The part of all requests that the access log has.", limits=(0, 1)
    )
    audit_log: str = _logging(
        "",
        "Write a JSON line for each control call and each refused call to this file; - is "
        "standard output.",
        form="<file>",
    )

    default_isolation: str = _backend(
        "none",
        "Where models run that do not set the parameter isolation: in the server's process (none; "
        "Python models as their own settings say), or each instance in a process of its own.",
        choices=("none", "process"),
    )
    backend_config: tuple[NamedSetting, ...] = _backend(
        (),
        "Setting for one backend, or for all of them if no backend is named.",
        form="[<backend>,]<key>=<value>",
        pattern=_FOR_ONE_OR_ALL,
    )
    gpu_fallback: str = _backend(
        "none",
        "What to do with a model that needs a GPU if there is none: reject it (none) or run it "
        "on the CPU (cpu).",
        choices=("none", "cpu"),
    )
    backend_directory: str = _backend(
        "/opt/tritonserver/backends",
        "Folder with Python-based backends: a folder for each, with a model.py.",
        form="<path>",
    )

    pinned_memory_pool_byte_size: int = _device(
        256 << 20, "Bytes of pinned memory.", form="<bytes>", limits=(0, None)
    )
    cuda_memory_pool_byte_size: tuple[str, ...] = _device(
        (), "Bytes of CUDA memory for one GPU.", form="<gpu>:<bytes>", pattern=r"\d+:\d+"
    )
    cuda_virtual_address_size: tuple[str, ...] = _device(
        (),
        "Maximum bytes of one implicit state on a GPU.",
        form="<gpu>:<bytes>",
        pattern=r"\d+:\d+",
    )
    min_supported_compute_capability: float = _device(
        6.0, "Minimum CUDA compute capability of a GPU to be used.", limits=(0, None)
    )
    buffer_manager_thread_count: int = _device(0, "Threads that copy tensors.", limits=(0, None))
    enable_peer_access: bool = _device(True, "Let GPUs read each other's memory.")
    host_policy: tuple[NamedSetting, ...] = _device(
        (),
        "Bind the instances that name this policy to a NUMA node (numa-node) or to CPU cores "
        "(cpu-cores).",
        form="<policy>,<key>=<value>",
        pattern=_FOR_ONE,
    )
    model_load_gpu_limit: tuple[str, ...] = _device(
        (),
        "Share of a GPU's memory beyond which no more models are loaded on it.",
        form="<gpu>:<fraction>",
        pattern=r"\d+:(\d+\.?\d*|\.\d+)",
    )

    allow_client_shm: str = _shared(
        "auto",
        "Let clients register shared memory for their tensors. Anyone who can reach the ports "
        "can then read and write it, so auto allows it only if they listen on loopback.",
        choices=("auto", "true", "false", "1", "0"),
    )

    api_keys: str = _keys(
        "",
        "File with the keys of clients, made with 'shoal key new'; requests without a key are "
        "refused. Read again when it changes.",
        form="<file>",
        empty=False,
    )
    api_key_header: str = _keys(
        "",
        "Header, or metadata over gRPC, in which clients may send their key instead of "
        "'Authorization: Bearer <key>'.",
        form="<name>",
        pattern=r"[0-9A-Za-z_.-]+",
        empty=False,
    )
    keyless_api: str = _keys(
        "health",
        "Kinds of requests that need no key as long as they name no model: health, metadata, "
        "metrics, or none.",
        form="<kind>[,<kind>...]",
        pattern=r"none|(health|metadata|metrics)(,(health|metadata|metrics))*",
        empty=False,
    )
    jwt_issuer: str = _keys("", "Issuer (iss) of accepted tokens.", form="<text>", empty=False)
    jwt_audience: str = _keys("", "Audience (aud) of accepted tokens.", form="<text>", empty=False)
    jwt_jwks: str = _keys(
        "",
        "JWKS file with the public keys of the issuer; accepts tokens (JWT) with RS256 and ES256 "
        "in place of keys (pip install 'shoal[jwt]'). Read again when it changes.",
        form="<file>",
        empty=False,
    )
    jwt_secret_file: str = _keys(
        "",
        "File with the secret for tokens with HS256, at least 32 bytes.",
        form="<file>",
        empty=False,
    )
    jwt_claim: tuple[NamedSetting, ...] = _keys(
        (),
        "Claim of tokens that has the name of their owner (name, default sub), an entry of "
        "--api-keys whose permissions and quotas they get (entry, shoal_key), or the permitted "
        "kinds of requests and models (apis, shoal_apis; models, shoal_models).",
        form="<name|entry|apis|models>=<claim>",
        pattern=r"(?P<key>name|entry|apis|models)=(?P<value>.+)",
    )
    jwt_default_entry: str = _keys(
        "", "Entry of --api-keys for tokens that name none.", form="<name>", empty=False
    )

    cache_config: tuple[NamedSetting, ...] = _cache(
        (),
        "Cache responses of models whose config enables it, with a setting of the cache such as "
        "local,size=1048576 or redis,host=localhost.",
        form="<cache>,<key>=<value>",
        pattern=_FOR_ONE,
    )
    cache_directory: str = _cache(
        "",
        "Folder with cache libraries.",
        form="<path>",
        no_effect="caches are Python packages",
    )

    rate_limit: str = _rate(
        "off",
        "Whether instances wait for the resources that their config names; those that have run "
        "least go first.",
        choices=("off", "execution_count"),
    )
    rate_limit_resource: tuple[str, ...] = _rate(
        (),
        "Count of a resource, on one device or on each; by default the most that any instance "
        "needs.",
        form="<name>:<count>[:<device>]",
        pattern=r"[^:]+:\d+(:\d+)?",
    )

    trace_config: tuple[NamedSetting, ...] = _trace(
        (),
        "Setting of the request trace, such as level=TIMESTAMPS, rate=100 or "
        "triton,file=trace.json.",
        form="[<mode>,]<key>=<value>",
        pattern=_FOR_ONE_OR_ALL,
    )

    repoagent_directory: str = _agent("", "Folder with agent libraries.", form="<path>")

    allow_sagemaker: bool = _sagemaker(
        False, "Listen for SageMaker requests: /ping, /invocations and /models."
    )
    sagemaker_address: str = _sagemaker(
        "0.0.0.0", "Address to listen on for SageMaker.", form="<address>"
    )
    sagemaker_port: int = _sagemaker(
        8080, "Port for SageMaker requests; 0 takes a free one.", limits=PORT
    )
    sagemaker_safe_port_range: str = _sagemaker(
        "",
        "Ports that all other listeners must have.",
        form="<first>-<last>",
        pattern=r"[0-9]{1,5}-[0-9]{1,5}",
    )
    sagemaker_thread_count: int = _sagemaker(
        8,
        "Threads that handle SageMaker requests.",
        limits=(1, None),
        no_effect="one event loop handles every connection",
    )

    allow_vertex_ai: bool = _vertex(
        False,
        "Listen for Vertex AI requests, on the routes in AIP_PREDICT_ROUTE and AIP_HEALTH_ROUTE. "
        "If AIP_MODE is PREDICTION, the default is true, and that of --allow-http and --allow-grpc "
        "false.",
    )
    vertex_ai_address: str = _vertex(
        "0.0.0.0", "Address to listen on for Vertex AI.", form="<address>"
    )
    vertex_ai_port: int = _vertex(
        8080,
        "Port for Vertex AI requests; 0 takes a free one. AIP_HTTP_PORT sets another default.",
        limits=PORT,
    )
    vertex_ai_thread_count: int = _vertex(
        8,
        "Threads that handle Vertex AI requests.",
        limits=(1, None),
        no_effect="one event loop handles every connection",
    )
    vertex_ai_default_model: str = _vertex(
        "", "Model for requests that name none; default: the only one.", form="<name>"
    )

    strict_model_config: bool = _deprecated(
        False,
        "Use each config.pbtxt as it is.",
        instead="--disable-auto-complete-config",
    )
    response_cache_byte_size: int = _deprecated(
        0,
        "Bytes of the local response cache.",
        form="<bytes>",
        limits=(0, None),
        instead="--cache-config=local,size=<bytes>",
    )
    trace_file: str = _deprecated(
        "",
        "File for the trace.",
        form="<file>",
        instead="--trace-config=triton,file=<file>",
    )
    trace_level: tuple[str, ...] = _deprecated(
        (),
        "What to trace.",
        choices=("OFF", "TIMESTAMPS", "TENSORS", "MIN", "MAX"),
        instead="--trace-config=level=<level>",
    )
    trace_rate: int = _deprecated(
        1000,
        "Trace one request in this number.",
        limits=(0, trace.MOST_RATE),
        instead="--trace-config=rate=<n>",
    )
    trace_count: int = _deprecated(
        -1,
        "How many requests to trace; -1 sets no limit.",
        limits=(-1, trace.MOST_COUNT),
        instead="--trace-config=count=<n>",
    )
    trace_log_frequency: int = _deprecated(
        0,
        "Traces per file; 0 writes all of them to one.",
        limits=(0, trace.MOST_RATE),
        instead="--trace-config=triton,log-frequency=<n>",
    )

    # Attributes that were set by name; the only field that is no flag.
    given: frozenset[str] = dataclasses.field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        checks.check_start_models(self.load_model, self.model_control_mode)
        checks.check_budget(self.model_memory_budget, self.model_control_mode)
        listeners = [
            (self.opens_http_port, "--http-port", self.http_address, self.http_port),
            (self.opens_grpc_port, "--grpc-port", self.grpc_address, self.grpc_port),
            (self.allow_metrics, "--metrics-port", self.metrics_listen_address, self.metrics_port),
            (self.tcp_port >= 0, "--tcp-port", self.tcp_address, self.tcp_port),
            (self.health_port >= 0, "--health-port", self.health_listen_address, self.health_port),
            (self.allow_vertex_ai, "--vertex-ai-port", self.vertex_ai_address, self.vertex_ai_port),
            (self.allow_sagemaker, "--sagemaker-port", self.sagemaker_address, self.sagemaker_port),
        ]
        opened = [listener[1:] for listener in listeners if listener[0]]
        checks.check_ports(opened)
        if self.allow_sagemaker:
            checks.check_safe_range(self.sagemaker_safe_port_range, opened[:-1])
        checks.check_sockets("http", self.allow_http, self.http_port, self.http_unix_socket)
        checks.check_sockets("grpc", self.allow_grpc, self.grpc_port, self.grpc_unix_socket)
        checks.check_socket_files(
            self.http_unix_socket, self.grpc_unix_socket, self.unix_socket_mode
        )
        checks.check_https(self.https_cert, self.https_key, self.https_client_ca)
        checks.check_pattern("--http-header-forward-pattern", self.http_header_forward_pattern)
        checks.check_pattern("--grpc-header-forward-pattern", self.grpc_header_forward_pattern)
        restricted = [
            *checks.read_restrictions("--http-restricted-api", self.http_restricted_api),
            *checks.read_restrictions("--grpc-restricted-protocol", self.grpc_restricted_protocol),
        ]
        checks.check_tcp(self.tcp_port, restricted)
        checks.check_tokens(
            {
                "--jwt-issuer": self.jwt_issuer,
                "--jwt-audience": self.jwt_audience,
                "--jwt-jwks": self.jwt_jwks,
                "--jwt-secret-file": self.jwt_secret_file,
                "--jwt-claim": self.jwt_claim,
                "--jwt-default-entry": self.jwt_default_entry,
            }
        )
        if {"api_key_header", "keyless_api"} & self.given and not self.requires_keys:
            raise OptionError(
                "--api-key-header and --keyless-api need --api-keys or --jwt-jwks: without them "
                "no request needs a key"
            )
        self.trace_options()
        if {"cache_config", "response_cache_byte_size"} <= self.given:
            raise OptionError(
                "--cache-config and --response-cache-byte-size ask for the same thing; "
                "keep --cache-config"
            )
        self.cache_settings()

    @property
    def auto_complete_config(self) -> bool:
        """Whether what a config leaves out is taken from the model."""
        return not (self.disable_auto_complete_config or self.strict_model_config)

    @property
    def model_memory_budget_bytes(self) -> int:
        """What models may hold together; 0 sets no limit."""
        return checks.read_size(self.model_memory_budget)

    @property
    def client_shared_memory(self) -> bool:
        """Whether clients may register shared memory."""
        if self.allow_client_shm != "auto":
            return self.allow_client_shm in ("true", "1")
        addresses = [self.http_address] if self.opens_http_port else []
        addresses += [self.grpc_address] if self.opens_grpc_port else []
        addresses += [self.sagemaker_address] if self.allow_sagemaker else []
        addresses += [self.vertex_ai_address] if self.allow_vertex_ai else []
        return all(checks.is_loopback(address) for address in addresses)

    @property
    def opens_http_port(self) -> bool:
        """Whether HTTP has a port, and not only a Unix socket."""
        return self.allow_http and self.http_port >= 0

    @property
    def opens_grpc_port(self) -> bool:
        """Whether gRPC has a port, and not only a Unix socket."""
        return self.allow_grpc and self.grpc_port >= 0

    @property
    def http_scheme(self) -> str:
        """How URLs of the HTTP and metrics ports begin."""
        return "https" if self.https_cert else "http"

    @property
    def requires_keys(self) -> bool:
        """Whether clients need a key or a token."""
        return bool(self.api_keys or self.jwt_jwks or self.jwt_secret_file)

    def without_keys(self) -> Options:
        """The same options for a server that requires no keys."""
        names = [option.attribute for option in TABLE if option.group == _keys.title]
        defaults = {name: getattr(_DEFAULTS, name) for name in names}
        return dataclasses.replace(self, **defaults, given=self.given - set(names))

    @property
    def open_apis(self) -> tuple[str, ...]:
        """The kinds of requests that need no key."""
        return () if self.keyless_api == "none" else tuple(self.keyless_api.split(","))

    @property
    def health_listen_address(self) -> str:
        """Where probes are served: their own address, or else that of HTTP."""
        return self.health_address or self.http_address

    @property
    def metrics_listen_address(self) -> str:
        """Where metrics are served: their own address, or else that of HTTP."""
        return self.metrics_address or self.http_address

    def http_restrictions(self) -> dict[str, tuple[str, str]]:
        """The header and value that each restricted kind of HTTP request asks for."""
        return checks.read_restrictions("--http-restricted-api", self.http_restricted_api)

    def grpc_restrictions(self) -> dict[str, tuple[str, str]]:
        """The metadata key and value that each restricted kind of gRPC call asks for."""
        return checks.read_restrictions("--grpc-restricted-protocol", self.grpc_restricted_protocol)

    def backend_settings(self) -> dict[str, dict[str, str]]:
        """`--backend-config` by backend; the settings for all are under the empty name."""
        settings: dict[str, dict[str, str]] = {}
        for name, key, value in self.backend_config:
            settings.setdefault(name, {})[key] = value
        return settings

    def cache_settings(self) -> tuple[str, dict[str, str]] | None:
        """The response cache that is asked for, by name, with its settings; None for none."""
        if self.response_cache_byte_size:
            return "local", {"size": str(self.response_cache_byte_size)}
        return checks.read_cache(self.cache_config)

    def rate_limits(self) -> list[tuple[str, int, int | None]]:
        """`--rate-limit-resource`: name, count, and device where one is given."""
        return [checks.read_resource(text) for text in self.rate_limit_resource]

    def trace_options(self) -> trace.TraceOptions:
        """How requests are traced, by --trace-config and what the older flags say beside it."""
        older = trace.TraceOptions(
            trace.levels(self.trace_level, "--trace-level"),
            self.trace_rate,
            self.trace_count,
            file=self.trace_file,
            log_frequency=self.trace_log_frequency,
        )
        return trace.read(self.trace_config, older)

    def warnings(self) -> list[str]:
        """A sentence for each flag that was set and does not do what it says, or is not safe."""
        problem = self.trace_options().problem()
        lines = [f"requests are not traced as asked: {problem}"] if problem else []
        if self.rate_limit_resource and self.rate_limit == "off":
            lines.append(
                "nothing is limited: --rate-limit-resource needs --rate-limit=execution_count"
            )
        if self.https_cert and self.tcp_port >= 0:
            lines.append("questions over TCP are not encrypted: --https-cert is for HTTP")
        lines.extend(self._open_control())
        for option in TABLE:
            if option.attribute not in self.given:
                continue
            if option.instead:
                lines.append(f"{option.flag} is deprecated; write {option.instead} instead")
            value = getattr(self, option.attribute)
            if option.no_effect and (option.honoured is None or value != option.honoured):
                lines.append(f"{option.flag} has no effect: {option.no_effect}")
        return lines

    def _open_control(self) -> Iterator[str]:
        """A warning if clients on other machines can load and unload models without a secret."""
        if self.model_control_mode not in ("explicit", "lazy") or self.requires_keys:
            return
        kind, http = "model-repository", self.http_restrictions()
        ports = [
            ("--http-address", self.opens_http_port, self.http_address, http),
            ("--grpc-address", self.opens_grpc_port, self.grpc_address, self.grpc_restrictions()),
            ("--sagemaker-address", self.allow_sagemaker, self.sagemaker_address, http),
        ]
        reached = [
            flag
            for flag, opened, address, restricted in ports
            if opened and not checks.is_loopback(address) and kind not in restricted
        ]
        if reached:
            uploads = ", and run code by uploading some" * (self.allow_model_upload == "true")
            yield (
                f"anyone who can reach {', '.join(reached)} can load and unload models{uploads}; "
                f"listen on 127.0.0.1, require keys with --api-keys, or a secret header with "
                f"--http-restricted-api and --grpc-restricted-protocol ({kind}:<key>=<value>)"
            )


def _read_table() -> tuple[Option, ...]:
    fields = [field for field in dataclasses.fields(Options) if field.metadata]
    return tuple(
        Option(field.name, str(field.type), field.default, **field.metadata) for field in fields
    )


TABLE = _read_table()
_DEFAULTS = Options()
BY_FLAG: Mapping[str, Option] = {flag: option for option in TABLE for flag in option.flags}
