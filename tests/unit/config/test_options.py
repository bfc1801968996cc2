"""The table of options: each one once, each one explained, and what they must agree on."""

import dataclasses

import pytest

from shoal.config.options import BY_FLAG, TABLE, NamedSetting, OptionError, Options

# Every flag a Triton deployment may pass, by group of its reference.
TRITON_FLAGS = """
id exit-timeout-secs
log-verbose log-info log-warning log-error log-format log-file
model-repository model-store exit-on-error disable-auto-complete-config strict-readiness
model-control-mode repository-poll-secs load-model model-config-name model-load-thread-count
model-load-retry-count model-namespacing enable-peer-access
allow-http http-address http-port reuse-http-port http-header-forward-pattern http-thread-count
http-max-input-size http-restricted-api
allow-grpc grpc-address grpc-port reuse-grpc-port grpc-header-forward-pattern
grpc-infer-thread-count grpc-infer-allocation-pool-size grpc-max-response-pool-size grpc-use-ssl
grpc-use-ssl-mutual grpc-server-cert grpc-server-key grpc-root-cert
grpc-infer-response-compression-level grpc-keepalive-time grpc-keepalive-timeout
grpc-keepalive-permit-without-calls grpc-http2-max-pings-without-data
grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes
grpc-max-connection-age grpc-max-connection-age-grace grpc-restricted-protocol
allow-sagemaker sagemaker-port sagemaker-safe-port-range sagemaker-thread-count
allow-vertex-ai vertex-ai-port vertex-ai-thread-count vertex-ai-default-model
allow-metrics allow-gpu-metrics allow-cpu-metrics metrics-address metrics-port
metrics-interval-ms metrics-config
trace-config backend-directory backend-config repoagent-directory cache-config cache-directory
rate-limit rate-limit-resource
pinned-memory-pool-byte-size cuda-memory-pool-byte-size cuda-virtual-address-size
min-supported-compute-capability buffer-manager-thread-count host-policy model-load-gpu-limit
allow-client-shm
strict-model-config response-cache-byte-size trace-file trace-level trace-rate trace-count
trace-log-frequency
"""

DEFAULTS = {
    "id": "triton",
    "exit_timeout_secs": 30,
    "model_control_mode": "none",
    "repository_poll_secs": 15,
    "exit_on_error": True,
    "strict_readiness": True,
    "model_load_thread_count": 4,
    "http_address": "0.0.0.0",
    "http_port": 8000,
    "grpc_port": 8001,
    "metrics_port": 8002,
    "http_max_input_size": 67108864,
    "metrics_interval_ms": 2000,
    "grpc_keepalive_time": 7200000,
    "allow_client_shm": "auto",
    "log_format": "default",
    "drain_secs": 0,
    "gpu_fallback": "none",
}


@pytest.mark.parametrize("name", TRITON_FLAGS.split())
def test_every_flag_of_triton_is_known(name):
    assert f"--{name}" in BY_FLAG


def test_each_flag_is_defined_once():
    flags = [flag for option in TABLE for flag in option.flags]
    assert len(flags) == len(set(flags))
    fields = {field.name for field in dataclasses.fields(Options)} - {"given"}
    assert {option.attribute for option in TABLE} == fields


def test_groups_are_contiguous():
    groups = [option.group for option in TABLE]
    starts = [
        group for group, before in zip(groups, [None, *groups], strict=False) if group != before
    ]
    assert len(starts) == len(set(starts))


@pytest.mark.parametrize("option", TABLE, ids=lambda option: option.attribute)
def test_each_option_is_explained_in_a_sentence(option):
    assert option.help[0].isupper()
    assert option.help.endswith(".")
    assert option.help.isascii()
    if option.type == "tuple[NamedSetting, ...]":
        assert "(?P<key>" in option.pattern
    if option.choices and not option.repeatable:
        assert option.default in option.choices


def test_defaults():
    options = Options()
    assert {name: getattr(options, name) for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"load_model": ("a",)},
            (
                "--load-model=a needs --model-control-mode=explicit or lazy; in mode none every "
                "model of the repository is loaded"
            ),
        ),
        (
            {"model_memory_budget": "4G", "model_control_mode": "explicit"},
            (
                "--model-memory-budget=4G needs --model-control-mode=lazy; in mode explicit "
                "unloaded models would not be loaded again"
            ),
        ),
        (
            {"model_memory_budget": "much", "model_control_mode": "lazy"},
            "--model-memory-budget=much is not a size; write bytes, such as 1073741824 or 1G",
        ),
        (
            {"load_model": ("a", "*"), "model_control_mode": "explicit"},
            (
                "--load-model=* loads every model and cannot be combined with --load-model=a; remove one of them"
            ),
        ),
        (
            {"http_port": 8001},
            "--http-port and --grpc-port are both 8001; give each listener a port of its own",
        ),
        (
            {"http_port": 9000, "metrics_port": 9000, "metrics_address": "127.0.0.1"},
            "--http-port and --metrics-port are both 9000; give each listener a port of its own",
        ),
        (
            {"tcp_port": 8001},
            "--grpc-port and --tcp-port are both 8001; give each listener a port of its own",
        ),
        (
            {"tcp_port": 9999, "http_restricted_api": (NamedSetting("inference", "key", "value"),)},
            (
                "--tcp-port=9999 would be open to everyone, while 'inference' is restricted; "
                "remove --tcp-port, or do not restrict 'inference'"
            ),
        ),
        (
            {
                "tcp_port": 0,
                "grpc_restricted_protocol": (NamedSetting("inference", "key", "value"),),
            },
            (
                "--tcp-port=0 would be open to everyone, while 'inference' is restricted; remove "
                "--tcp-port, or do not restrict 'inference'"
            ),
        ),
        (
            {"health_port": 8000},
            "--http-port and --health-port are both 8000; give each listener a port of its own",
        ),
        (
            {"allow_sagemaker": True, "allow_vertex_ai": True},
            (
                "--vertex-ai-port and --sagemaker-port are both 8080; give each listener a port of "
                "its own"
            ),
        ),
        (
            {"allow_sagemaker": True, "sagemaker_safe_port_range": "8001-9000"},
            (
                "The server cannot listen to HTTP requests at port 8000, allowed port range is "
                "[8001, 9000]; change --http-port or --sagemaker-safe-port-range"
            ),
        ),
        (
            {"http_port": -1},
            "--http-port=off needs --http-unix-socket=<path>; to switch the protocol off, write --allow-http=false",
        ),
        (
            {"grpc_port": -1},
            "--grpc-port=off needs --grpc-unix-socket=<path>; to switch the protocol off, write --allow-grpc=false",
        ),
        (
            {"http_unix_socket": "/a", "allow_http": False},
            "--http-unix-socket=/a has no use with --allow-http=false; remove one of them",
        ),
        (
            {"http_unix_socket": "/a", "grpc_unix_socket": "/a"},
            "--http-unix-socket and --grpc-unix-socket are both /a; give each a path of its own",
        ),
        (
            {"unix_socket_mode": "rw"},
            "--unix-socket-mode=rw is no octal number of permissions; write 660",
        ),
        (
            {"https_key": "key.pem"},
            "--https-key=key.pem needs --https-cert=<file>: without it HTTP is plain",
        ),
        (
            {"https_client_ca": "ca.pem"},
            "--https-client-ca=ca.pem needs --https-cert=<file>: without it HTTP is plain",
        ),
        (
            {"http_header_forward_pattern": "("},
            (
                "--http-header-forward-pattern=( is not a regular expression: missing ), unterminated "
                "subpattern at position 0"
            ),
        ),
        (
            {"http_restricted_api": (NamedSetting("health,stats", "key", "value"),)},
            (
                "--http-restricted-api has no kind of request 'stats'; use health, metadata, "
                "inference, shared-memory, model-config, model-repository, statistics, trace, "
                "logging"
            ),
        ),
        (
            {
                "http_restricted_api": (
                    NamedSetting("health", "a", "b"),
                    NamedSetting("health", "c", "d"),
                )
            },
            (
                "--http-restricted-api names 'health' twice; each kind of request can require one "
                "header"
            ),
        ),
        (
            {
                "cache_config": (
                    NamedSetting("local", "size", "1"),
                    NamedSetting("redis", "port", "1"),
                )
            },
            (
                "--cache-config names several caches (local, redis), but only one is possible; "
                "keep the settings of one of them"
            ),
        ),
        (
            {
                "cache_config": (NamedSetting("local", "size", "1"),),
                "response_cache_byte_size": 1,
                "given": frozenset({"cache_config", "response_cache_byte_size"}),
            },
            (
                "--cache-config and --response-cache-byte-size ask for the same thing; keep "
                "--cache-config"
            ),
        ),
    ],
)
def test_options_that_contradict_each_other(values, sentence):
    with pytest.raises(OptionError) as caught:
        Options(**values)
    assert caught.value.message == sentence


@pytest.mark.parametrize(
    "values",
    [
        {"http_port": 0, "grpc_port": 0, "metrics_port": 0},
        {"http_port": 8001, "allow_grpc": False},
        {"http_port": 9000, "metrics_port": 9000, "allow_metrics": False},
        {"http_port": 9000, "http_address": "10.0.0.1", "metrics_port": 9000}
        | {"metrics_address": "10.0.0.2"},
        {"http_port": -1, "http_unix_socket": "/a", "grpc_port": -1, "grpc_unix_socket": "/b"},
        {"health_port": 8001, "grpc_port": -1, "grpc_unix_socket": "/b"},
        {"load_model": ("*",), "model_control_mode": "explicit"},
        {"load_model": ("a", "b"), "model_control_mode": "explicit"},
    ],
)
def test_options_that_go_together(values):
    assert dataclasses.replace(Options(), **values) == Options(**values)


def test_settings_for_one_backend_and_for_all():
    options = Options(
        backend_config=(
            NamedSetting("onnxruntime", "a", "1"),
            NamedSetting("", "b", "2"),
            NamedSetting("onnxruntime", "c", "3"),
        )
    )
    assert options.backend_settings() == {"onnxruntime": {"a": "1", "c": "3"}, "": {"b": "2"}}


def test_restrictions_by_kind_of_request():
    options = Options(http_restricted_api=(NamedSetting("health,metadata", "key", "value"),))
    assert options.http_restrictions() == {
        "health": ("key", "value"),
        "metadata": ("key", "value"),
    }


@pytest.mark.parametrize(
    ("values", "expected"), [({}, True), ({"strict_model_config": True}, False)]
)
def test_the_deprecated_name_of_auto_complete_still_works(values, expected):
    assert Options(**values).auto_complete_config is expected


def test_warnings_name_what_was_set_and_has_no_effect():
    options = Options(
        http_thread_count=4,
        trace_file="t",
        allow_sagemaker=False,
        http_port=1,
        given=frozenset({"http_thread_count", "trace_file", "allow_sagemaker", "http_port"}),
    )
    assert options.warnings() == [
        "--http-thread-count has no effect: one event loop handles every connection",
        "--trace-file is deprecated; write --trace-config=triton,file=<file> instead",
    ]


def test_questions_over_tcp_are_never_encrypted():
    (line,) = Options(https_cert="cert.pem", tcp_port=9999).warnings()
    assert line == "questions over TCP are not encrypted: --https-cert is for HTTP"


@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        ({"http_port": -1, "http_unix_socket": "/a", "allow_grpc": False}, True),
        ({"http_port": -1, "http_unix_socket": "/a"}, False),  # gRPC listens on all addresses
        ({"http_unix_socket": "/a", "allow_grpc": False}, False),
    ],
)
def test_a_unix_socket_is_for_this_machine(values, allowed):
    options = Options(**values, model_control_mode="explicit")
    assert options.client_shared_memory is allowed
    assert bool(options.warnings()) is not allowed  # about open model control


def test_nothing_set_no_warning():
    assert Options().warnings() == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("1", 1),
        ("1048576", 1 << 20),
        ("3K", 3 << 10),
        ("512m", 512 << 20),
        ("4G", 4 << 30),
        ("4Gi", 4 << 30),
        ("4GiB", 4 << 30),
        ("2T", 2 << 40),
    ],
)
def test_a_memory_budget_in_bytes(text, count):
    options = Options(model_memory_budget=text, model_control_mode="lazy")
    assert options.model_memory_budget_bytes == count


@pytest.mark.parametrize("text", ["0", "-1", "4GB", "G", "4 G", "4.5G", "1e9"])
def test_what_is_no_memory_budget(text):
    with pytest.raises(OptionError, match="is not a size"):
        Options(model_memory_budget=text, model_control_mode="lazy")


def test_the_cache_by_name_with_its_settings():
    assert Options().cache_settings() is None
    redis = (NamedSetting("redis", "host", "a"), NamedSetting("redis", "port", "1"))
    settings = Options(cache_config=redis).cache_settings()
    assert settings == ("redis", {"host": "a", "port": "1"})
    assert Options(response_cache_byte_size=5).cache_settings() == ("local", {"size": "5"})
    assert Options(response_cache_byte_size=0).cache_settings() is None


def test_rate_limits_with_and_without_a_device():
    options = Options(rate_limit_resource=("R1:10", "R2:4:0"))
    assert options.rate_limits() == [("R1", 10, None), ("R2", 4, 0)]
    warning = "nothing is limited: --rate-limit-resource needs --rate-limit=execution_count"
    assert options.warnings() == [warning]
    limited = Options(rate_limit="execution_count", rate_limit_resource=("R1:10",))
    assert limited.warnings() == []
