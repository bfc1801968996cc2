"""Words of a command line, and the options or the sentence they lead to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.arguments import parse
from shoal.config.options import BY_FLAG, TABLE, NamedSetting, OptionError, Options


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {}),
        ("models", {"model_repository": ("models",)}),
        ("a b --model-store c", {"model_repository": ("c", "a", "b")}),
        ("--model-repository=a --model-repository a", {"model_repository": ("a",)}),
        ("--http-port=9000", {"http_port": 9000}),
        ("--http-port 9000 models", {"http_port": 9000, "model_repository": ("models",)}),
        ("--http-port=1 --http-port=2", {"http_port": 2}),
        ("--id=a=b", {"id": "a=b"}),
        ("--log-file=", {"log_file": ""}),
        ("--strict-readiness=false", {"strict_readiness": False}),
        ("--strict-readiness 0", {"strict_readiness": False}),
        (
            "--strict-readiness OFF models",
            {"strict_readiness": False} | {"model_repository": ("models",)},
        ),
        ("--allow-sagemaker --id x", {"allow_sagemaker": True, "id": "x"}),
        ("--log-info=True", {"log_info": True}),
        ("--disable-auto-complete-config", {"disable_auto_complete_config": True}),
        (
            "--disable-auto-complete-config models",
            {"disable_auto_complete_config": True} | {"model_repository": ("models",)},
        ),
        ("--disable-auto-complete-config false", {"disable_auto_complete_config": False}),
        ("--demo", {"demo": True}),
        ("--log-verbose=true", {"log_verbose": 1}),
        ("--log-verbose 2", {"log_verbose": 2}),
        (
            "--model-control-mode=EXPLICIT --load-model=*",
            {"model_control_mode": "explicit"} | {"load_model": ("*",)},
        ),
        ("--log-format=iso8601", {"log_format": "ISO8601"}),
        ("--drain-secs=0.5", {"drain_secs": 0.5}),
        ("--trace-count -1", {"trace_count": -1}),
        ("--trace-level=max --trace-level=off", {"trace_level": ("MAX", "OFF")}),
        (
            "--backend-config=onnxruntime,a=b",
            {"backend_config": (NamedSetting("onnxruntime", "a", "b"),)},
        ),
        ("--backend-config a=b,c", {"backend_config": (NamedSetting("", "a", "b,c"),)}),
        ("--backend-config=,a=b", {"backend_config": (NamedSetting("", "a", "b"),)}),
        (
            "--trace-config=opentelemetry,resource=k=v",
            {"trace_config": (NamedSetting("opentelemetry", "resource", "k=v"),)},
        ),
        (
            "--metrics-config=counter_latencies=false",
            {"metrics_config": (NamedSetting("", "counter_latencies", "false"),)},
        ),
        (
            "--metrics-config summary_quantiles=0.5:0.05,0.9:0.01",
            {"metrics_config": (NamedSetting("", "summary_quantiles", "0.5:0.05,0.9:0.01"),)},
        ),
        (
            "--http-restricted-api=health,metadata:key=value",
            {"http_restricted_api": (NamedSetting("health,metadata", "key", "value"),)},
        ),
        ("--host-policy=p,numa-node=0", {"host_policy": (NamedSetting("p", "numa-node", "0"),)}),
        (
            "--rate-limit-resource=R1:10 --rate-limit-resource=R2:4:0",
            {"rate_limit_resource": ("R1:10", "R2:4:0")},
        ),
        (
            "--cuda-memory-pool-byte-size=0:67108864",
            {"cuda_memory_pool_byte_size": ("0:67108864",)},
        ),
        ("--model-load-gpu-limit 0:0.9", {"model_load_gpu_limit": ("0:0.9",)}),
        ("--cors=* --cors=https://example.org", {"cors": ("*", "https://example.org")}),
        ("--id x -- --odd", {"id": "x", "model_repository": ("--odd",)}),
        # What KServe and ModelMesh pass.
        (
            (
                "--model-store=/mnt/models --grpc-port=9000 --http-port=8080 --allow-grpc=true "
                "--allow-http=true"
            ),
            {"model_repository": ("/mnt/models",), "grpc_port": 9000, "http_port": 8080},
        ),
        (
            (
                "--model-control-mode=explicit --strict-model-config=false "
                "--strict-readiness=false --allow-sagemaker=false"
            ),
            {"model_control_mode": "explicit", "strict_readiness": False},
        ),
    ],
)
def test_parse(words, expected):
    assert parse(words.split()) == Options(**expected)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--model-repositry=x",
            "unknown option --model-repositry; did you mean --model-repository?",
        ),
        (
            "--model_repository=x",
            "unknown option --model_repository; did you mean --model-repository?",
        ),
        ("-http-port 1", "unknown option -http-port; did you mean --http-port?"),
        ("--model-repo=x", "unknown option --model-repo; did you mean --model-repository?"),
        ("--xyzzy", "unknown option --xyzzy; --help lists all of them"),
        ("--http-port=abc", "--http-port takes a whole number from -1 to 65535; found 'abc'"),
        ("--http-port=65536", "--http-port takes a whole number from -1 to 65535; found '65536'"),
        ("--http-port=8_000", "--http-port takes a whole number from -1 to 65535; found '8_000'"),
        ("--http-port=", "--http-port takes a whole number from -1 to 65535; found nothing"),
        (
            "--exit-timeout-secs=-1",
            "--exit-timeout-secs takes a whole number of at least 0; found '-1'",
        ),
        ("--drain-secs=nan", "--drain-secs takes a number of at least 0; found 'nan'"),
        (
            "--http-max-input-size=0",
            "--http-max-input-size takes a whole number of at least 1; found '0'",
        ),
        (
            "--grpc-infer-thread-count=1",
            "--grpc-infer-thread-count takes a whole number from 2 to 128; found '1'",
        ),
        ("--exit-on-error=maybe", "--exit-on-error takes true or false (or 1 or 0); found 'maybe'"),
        (
            "--exit-on-error models",
            "--exit-on-error takes true or false (or 1 or 0); found 'models'",
        ),
        (
            "--model-control-mode=auto",
            "--model-control-mode takes none, poll, explicit or lazy; found 'auto'",
        ),
        ("--gpu-fallback=gpu", "--gpu-fallback takes none or cpu; found 'gpu'"),
        (
            "--backend-config=onnxruntime",
            "--backend-config takes [<backend>,]<key>=<value>; found 'onnxruntime'",
        ),
        ("--metrics-config=a,b=c", "--metrics-config takes <key>=<value>; found 'a,b=c'"),
        (
            "--host-policy=numa-node=0",
            "--host-policy takes <policy>,<key>=<value>; found 'numa-node=0'",
        ),
        ("--cors=example.org", "--cors takes <origin>; found 'example.org'"),
        (
            "--rate-limit-resource=R1",
            "--rate-limit-resource takes <name>:<count>[:<device>]; found 'R1'",
        ),
        (
            "--unix-socket-mode=888",
            "--unix-socket-mode takes <octal number>; found '888'",
        ),
        ("--model-store=", "--model-store takes <path>; found nothing"),
        ("--model-config-name=", "--model-config-name takes <name>; found nothing"),
        ("--id", "--id needs a value (a text), written as --id=..."),
        (
            "--drain-secs --id x",
            "--drain-secs needs a value (a number of at least 0), written as --drain-secs=...",
        ),
        (
            "--load-model=a",
            (
                "--load-model=a needs --model-control-mode=explicit or lazy; in mode none every "
                "model of the repository is loaded"
            ),
        ),
        (
            "--http-port=8002",
            "--http-port and --metrics-port are both 8002; give each listener a port of its own",
        ),
    ],
)
def test_mistakes(words, sentence):
    with pytest.raises(OptionError) as caught:
        parse(words.split())
    assert caught.value.message == sentence


def test_paths_are_refused_where_only_flags_belong():
    with pytest.raises(OptionError) as caught:
        parse(["models"], paths=False)
    assert caught.value.message == (
        "unexpected argument 'models'; a repository is given as --model-repository=models"
    )


def sample(option):
    """A value that `option` takes, and how it is written."""
    samples = {
        "bool": "false",
        "int": str(int(option.limits[0]) + 2 if option.limits else 2),
        "float": "7.5",
        "tuple[NamedSetting, ...]": "health:key=value"
        if ":<key>" in option.form
        else "name,key=value",
    }
    special = {
        "metrics_config": "counter_latencies=true",
        "trace_config": "triton,file=trace.json",
        "cors": "*",
        "rate_limit_resource": "R:1",
        "sagemaker_safe_port_range": "1-2",
        "model_load_gpu_limit": "0:0.5",
        "model_memory_budget": "4G",
        "repository_cache_size": "4G",
        "repository_download_rate": "100M",
        "cuda_memory_pool_byte_size": "0:1",
        "cuda_virtual_address_size": "0:1",
        "unix_socket_mode": "660",
        "access_log_sample": "0.5",
        "keyless_api": "metrics,health",
        "jwt_claim": "entry=role",
    }
    if option.choices:
        return option.choices[-1]
    return special.get(option.attribute) or samples.get(option.type, "text")


@pytest.mark.parametrize("option", TABLE, ids=lambda option: option.attribute)
def test_every_option_takes_both_forms(option):
    value = sample(option)
    around = {
        "load_model": ["--model-control-mode=lazy"],
        "model_memory_budget": ["--model-control-mode=lazy"],
        "https_key": ["--https-cert=file"],
        "https_client_ca": ["--https-cert=file"],
    }.get(option.attribute, [])
    if option.group == "Keys and tokens":
        around = ["--jwt-jwks=keys.json", "--jwt-issuer=me", "--jwt-audience=you"]
    joined = parse([*around, f"{option.flag}={value}"])
    apart = parse([*around, option.flag, value])
    assert joined == apart
    assert option.attribute in joined.given
    unless = getattr(joined, option.attribute) == option.honoured
    named = any(line.startswith(f"{option.flag} has no effect") for line in joined.warnings())
    assert named is (bool(option.no_effect) and not unless)


@given(st.lists(st.text(max_size=30) | st.sampled_from(list(BY_FLAG)), max_size=6))
def test_any_words_give_options_or_one_sentence(words):
    try:
        parse(words)
    except OptionError as error:
        assert error.message  # noqa: PT017
