"""Streams, sequences and generate, on Shoal and on Triton."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from shoal.client import Client, ClientError, InvalidInput, ServerError

ONE = np.arange(16, dtype=np.int32).reshape(1, 16)


@pytest.fixture
def grpc(server):
    with Client(server.grpc) as client:
        yield client


@pytest.fixture
def http(server):
    with Client(server.http) as client:
        yield client


def words(results):
    return [result["WORD"][0].decode() for result in results]


def test_many_responses_to_one_request(grpc):
    with grpc.stream("words") as stream:
        stream.send({"TEXT": ["one two three"]}, id="a")
        results = list(stream)
    assert words(results) == ["one", "two", "three"]
    assert {result.id for result in results} == {"a"}


def test_no_response_at_all(grpc):
    with grpc.stream("words") as stream:
        stream.send({"TEXT": [""]})
        assert list(stream) == []
        stream.send({"TEXT": ["again"]})
        assert words(stream) == ["again"]


def test_several_requests_and_models(grpc):
    with grpc.stream() as stream:
        for index in range(5):
            stream.send({"INPUT0": ONE, "INPUT1": ONE * index}, model="add_sub", id=str(index))
        results = list(stream)
        assert [result.id for result in results] == list("01234")  # in their order
        np.testing.assert_array_equal(results[3]["OUTPUT0"], ONE * 4)
        with pytest.raises(InvalidInput, match="name the model"):
            stream.send({"INPUT0": ONE})


def test_an_error_is_that_of_one_request(grpc):
    with grpc.stream("words") as stream:
        stream.send({"TEXT": ["one bad"]}, id="first")
        assert words([stream.receive()]) == ["one"]
        with pytest.raises(ServerError, match="this is a bad word"):
            stream.receive()
        stream.send({"WHAT": ["one"]}, id="second")
        with pytest.raises(ServerError, match="WHAT"):
            list(stream)
        stream.send({"TEXT": ["still here"]})
        assert words(stream)[-2:] == ["still", "here"]


def test_an_end_from_our_side(grpc):
    stream = grpc.stream("words")
    stream.send({"TEXT": ["one two"]})
    stream.finish()
    assert words([stream.receive(), stream.receive()]) == ["one", "two"]
    assert stream.receive() is None
    stream.close()
    with pytest.raises(ClientError, match="this stream has ended"):
        stream.send({"TEXT": ["three"]})


def test_large_messages_from_one_thread_read_by_another(grpc):
    """More than fits on the way: neither side may wait for the other to read first."""
    large = np.arange(500_000, dtype=np.float32)
    with grpc.stream("echo") as stream:

        def send():
            for index in range(20):
                stream.send({"FP32": large}, id=str(index))

        sender = threading.Thread(target=send)
        sender.start()
        results = [stream.receive() for _ in range(20)]
        sender.join()
    assert [result.id for result in results] == [str(index) for index in range(20)]
    np.testing.assert_array_equal(results[-1]["OUT_FP32"], large)


def test_large_messages_all_sent_before_any_is_read(grpc):
    large = np.arange(500_000, dtype=np.float32)
    with grpc.stream("echo") as stream:
        for _ in range(20):
            stream.send({"FP32": large})
        assert sum(result["OUT_FP32"].size for result in stream) == 20 * large.size


def test_streams_need_grpc_and_generate_needs_http(http, grpc):
    with pytest.raises(InvalidInput, match="streams need gRPC"):
        http.stream("words")
    with pytest.raises(InvalidInput, match="generate needs HTTP"):
        grpc.generate("words", {"TEXT": "one"})
    with pytest.raises(InvalidInput, match="generate needs HTTP"):
        list(grpc.generate_stream("words", {"TEXT": "one"}))


def test_generate(http):
    found = http.generate("words", {"TEXT": "one"})
    assert found["WORD"] == "one"
    with pytest.raises(ServerError, match="exactly 1 response"):
        http.generate("words", {"TEXT": "one two"})
    with pytest.raises(ServerError, match="nope"):
        http.generate("nope", {"TEXT": "one"})


def test_generate_stream(http):
    found = list(http.generate_stream("words", {"TEXT": "one two three"}))
    assert [each["WORD"] for each in found] == ["one", "two", "three"]
    with pytest.raises(ServerError, match="nope"):
        list(http.generate_stream("nope", {"TEXT": "one"}))
    begun = http.generate_stream("words", {"TEXT": "one bad"})
    assert next(begun)["WORD"] == "one"
    with pytest.raises(ServerError, match="this is a bad word"):
        next(begun)


def test_a_stream_of_responses_may_be_closed_early(http):
    begun = http.generate_stream("words", {"TEXT": "one two three"})
    assert next(begun)["WORD"] == "one"
    begun.close()
    assert http.live()


def test_sequences(client):
    with client.sequence("counter") as first, client.sequence("counter", 77) as second:
        totals = [
            int(sequence.infer({"INPUT": np.array([[number]], np.int32)})["TOTAL"][0, 0])
            for number, sequence in ((1, first), (10, second), (2, first), (20, second))
        ]
        assert totals == [1, 10, 3, 30]
        assert second.id == 77
        last = second.infer({"INPUT": [[5]]}, end=True)
        assert (int(last["TOTAL"][0, 0]), int(last["ENDED"][0, 0])) == (35, 1)
        with pytest.raises(InvalidInput, match="has ended"):
            second.infer({"INPUT": [[5]]})
    again = client.infer(
        "counter",
        {"INPUT": [[4]]},
        sequence_id=first.id,
        sequence_start=True,
        sequence_end=True,
    )
    assert int(again["TOTAL"][0, 0]) == 4


def test_leaving_a_sequence_ends_it_on_the_server(client):
    with client.sequence("counter", 123) as sequence:
        sequence.infer({"INPUT": [[3]]})
    with pytest.raises(ServerError, match="START"):
        client.infer("counter", {"INPUT": [[1]]}, sequence_id=123)
    with client.sequence("counter", 124):
        pass  # nothing was sent, so there is nothing to end

    def fail():
        with client.sequence("counter", 125) as sequence:
            sequence.infer({"INPUT": [[3]]})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with pytest.raises(InvalidInput, match="other than 0"):
        client.sequence("counter", 0)


def test_sequences_on_a_stream(grpc):
    with grpc.stream("counter") as stream:
        for number in (1, 2, 3):
            stream.send(
                {"INPUT": [[number]]},
                sequence_id=9,
                sequence_start=number == 1,
                sequence_end=number == 3,
            )
        assert [int(result["TOTAL"][0, 0]) for result in stream] == [1, 3, 6]
