from shoal.ray.calls import Call, Calls, grpc_subject, http_subject
from shoal.wire.proto import messages


def call(subject, body=b"\x00\xff"):
    return Call("http", f"/{subject}", body, (("a", "b"),), "m", subject)


def test_the_last_call_about_something_is_kept():
    calls = Calls()
    assert [calls.add(call(subject)) for subject in ("x", "y", "x")] == [1, 2, 3]
    assert [one.subject for one in calls.since(0)] == ["y", "x"]
    assert [one.subject for one in calls.since(2)] == ["x"]
    assert calls.since(3) == []


def test_calls_survive_their_dump():
    calls, loaded = Calls(), Calls()
    calls.add(call("x"))
    calls.add(call("y"))
    loaded.load(calls.dump())
    assert loaded.last == 2
    assert loaded.since(0) == calls.since(0)
    assert loaded.since(1) == [call("y")]


def test_both_protocols_name_the_same_subject():
    load = messages.RepositoryModelLoadRequest(model_name="m")
    unload = "/v2/repository/models/m/unload"
    assert grpc_subject("RepositoryModelLoad", load, "m") == http_subject(unload, b"", "m")
    settings = messages.LogSettingsRequest()
    settings.settings["log_info"].bool_param = True
    body = b'{"log_info": false}'
    assert grpc_subject("LogSettings", settings, "") == http_subject("/v2/logging", body, "")
    trace = messages.TraceSettingRequest(model_name="m")
    trace.settings["trace_rate"].value.append("1")
    path = "/v2/models/m/trace/setting"
    over_http = http_subject(path, b'{"trace_rate": "2"}', "m")
    assert grpc_subject("TraceSetting", trace, "m") == over_http
    assert http_subject(path, b"no JSON", "m") == "trace m: "
