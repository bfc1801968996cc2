import pytest

PREFLIGHT = {
    "origin": "https://a.example",
    "access_control_request_method": "POST",
    "access_control_request_headers": "content-type, x-custom",
}
PAGE = {"origin": "https://a.example", "host": "localhost"}


def cors_headers(answer):
    return {k: v for k, v in answer.headers.items() if k.startswith(b"access-control")}


def test_nothing_without_being_asked_for(front):
    assert front.ask("OPTIONS", "/v2/models/m/infer", **PREFLIGHT).headers == {
        b"allow": b"POST, OPTIONS"
    }
    assert not cors_headers(front.ask("GET", "/v2", origin="https://a.example"))


@pytest.mark.parametrize(
    ("origins", "allowed"),
    [
        (("*",), b"*"),
        (("https://b.example", "https://a.example/"), b"https://a.example"),
        (("https://b.example",), None),
    ],
)
def test_preflight(front, origins, allowed):
    front.set(cors_origins=origins)
    answer = front.ask("OPTIONS", "/v2/models/m/infer", **PREFLIGHT)
    assert answer.status == 204
    if allowed is None:
        assert not cors_headers(answer)
        return
    assert cors_headers(answer) == {
        b"access-control-allow-origin": allowed,
        b"access-control-allow-methods": b"GET, HEAD, POST, OPTIONS",
        b"access-control-allow-headers": b"content-type, x-custom",
        b"access-control-max-age": b"600",
    }
    assert (b"vary" in answer.headers) is (allowed != b"*")


@pytest.mark.parametrize("origins", [("*",), ("https://a.example",)])
def test_answers_and_errors_carry_the_headers(front, origins):
    front.set(cors_origins=origins)
    for answer in (
        front.ask("GET", "/v2", origin="https://a.example"),
        front.ask("GET", "/v2/nothing", origin="https://a.example"),
        front.ask("POST", "/v2", **PAGE),
        front.infer(front.input(), **PAGE),
        front.infer(b"{", **PAGE),
    ):
        assert cors_headers(answer) == {
            b"access-control-allow-origin": origins[0].encode(),
            b"access-control-expose-headers": b"Inference-Header-Content-Length",
        }


def test_requests_of_no_origin_and_of_strangers(front):
    front.set(cors_origins=("https://a.example",))
    assert not cors_headers(front.ask("GET", "/v2"))
    answer = front.ask("GET", "/v2", origin="https://evil.example")
    assert answer.status == 200
    assert not cors_headers(answer)


def test_disconnects_still_cancel(front):
    front.set(cors_origins=("*",))
    front.engine.held = True

    async def leave():
        exchange = front.begin("POST", "/v2/models/m/infer", front.input(), **PAGE)
        exchange.on_disconnect()

    front.loop.run_until_complete(leave())
    assert front.engine.requests[0].cancelled


def test_an_answer_may_vary_in_two_ways(front):
    front.set(cors_origins=("https://a.example",), compress_from_bytes=1)
    answer = front.infer(front.input(), **PAGE, accept_encoding="gzip")
    assert answer.headers[b"content-encoding"] == b"gzip"
    assert answer.headers[b"vary"] == b"Accept-Encoding, Origin"
