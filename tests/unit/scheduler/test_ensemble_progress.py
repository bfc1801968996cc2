"""How an ensemble request proceeds: a step runs when its tensors are there, rows leave in order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core import dtypes
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument
from shoal.scheduler.ensemble_progress import EnsembleProgress
from shoal.scheduler.ensemble_tensors import (
    SequenceInfo,
    TensorValue,
    ensemble_outputs,
    fitted_shape,
    hand_on,
    reported_position,
    response_values,
    step_inputs,
    step_position,
)
from tests.support.fakes import make_request


def value(number=0):
    return TensorValue(Tensor.from_array("t", np.full((1, 1), number, np.int32)), batched=True)


def numbers(row):
    return {name: int(one.tensor.array[0, 0]) for name, one in row.items()}


def steps_of(ready):
    return [(entry.step, entry.iteration) for entry in ready]


def start(graph, requested=(), **inputs):
    progress = EnsembleProgress(graph, graph.plan(requested))
    return progress, progress.begin(inputs or {"IN": value()})


class TestProgress:
    def test_a_step_waits_for_all_its_tensors(self, kit):
        graph = kit.pipe(
            [
                (kit.model("left"), {"x": "IN"}, {"y": "a"}),
                (kit.model("right"), {"x": "IN"}, {"y": "b"}),
                (kit.model("join", inputs=("p", "q")), {"p": "a", "q": "b"}, {"y": "OUT"}),
            ]
        )
        progress, ready = start(graph)
        assert steps_of(ready) == [(0, 0), (1, 0)]  # side by side
        assert progress.advance(1, 0, {"b": value(2)}) == ([], [])
        ready, rows = progress.advance(0, 0, {"a": value(1)})
        assert steps_of(ready) == [(2, 0)]
        assert rows == []
        assert numbers(ready[0].values) == {"a": 1, "b": 2}
        ready, rows = progress.advance(2, 0, {"OUT": value(3)})
        assert (ready, [numbers(row) for row in rows]) == ([], [{"OUT": 3}])

    def test_an_input_may_be_an_output_of_nothing_else(self, kit):
        steps = [(kit.model("m", inputs=("p", "q")), {"p": "IN", "q": "MORE"}, {"y": "OUT"})]
        graph = kit.pipe(steps, inputs=("IN", "MORE"))
        _, ready = start(graph, IN=value(), MORE=TensorValue(None, batched=True))
        assert steps_of(ready) == [(0, 0)]
        assert ready[0].values["MORE"].tensor is None

    def test_what_nobody_wants_is_not_run(self, kit):
        graph = kit.pipe(
            [
                (kit.model("one"), {"x": "IN"}, {"y": "A"}),
                (kit.model("two"), {"x": "IN"}, {"y": "B"}),
            ],
            outputs=("A", "B"),
        )
        progress, ready = start(graph, ("B",))
        assert steps_of(ready) == [(1, 0)]
        _, rows = progress.advance(1, 0, {"B": value(5)})
        assert [numbers(row) for row in rows] == [{"B": 5}]

    def test_tensors_are_let_go_of(self, kit):
        graph = kit.pipe(
            [
                (kit.model("one"), {"x": "IN"}, {"y": "A"}),
                (kit.model("two"), {"x": "A"}, {"y": "B"}),
                (kit.model("three", inputs=("p", "q")), {"p": "A", "q": "B"}, {"y": "OUT"}),
            ]
        )
        progress, _ = start(graph)
        assert progress.tensors_held == 0  # the first step has taken IN
        progress.advance(0, 0, {"A": value()})
        assert progress.tensors_held == 1  # the third step wants A too
        progress.advance(1, 0, {"B": value()})
        assert progress.tensors_held == 0

    def test_an_output_that_also_feeds_a_step(self, kit):
        graph = kit.pipe(
            [
                (kit.model("one"), {"x": "IN"}, {"y": "A"}),
                (kit.model("two"), {"x": "A"}, {"y": "B"}),
            ],
            outputs=("A", "B"),
        )
        progress, _ = start(graph)
        ready, rows = progress.advance(0, 0, {"A": value(1)})
        assert (steps_of(ready), rows) == ([(1, 0)], [])
        _, rows = progress.advance(1, 0, {"B": value(2)})
        assert [numbers(row) for row in rows] == [{"A": 1, "B": 2}]


@pytest.fixture
def streaming(kit):
    """A decoupled step of two outputs; one takes a detour before they meet again."""
    return kit.pipe(
        [
            (
                kit.model("stream", outputs=("y", "z"), decoupled=True),
                {"x": "IN"},
                {"y": "a", "z": "b"},
            ),
            (kit.model("side"), {"x": "a"}, {"y": "c"}),
            (kit.model("join", inputs=("p", "q")), {"p": "b", "q": "c"}, {"y": "OUT"}),
        ]
    )


class TestIterations:
    def test_tensors_meet_by_the_number_of_their_iteration(self, streaming):
        progress, _ = start(streaming)
        first, _ = progress.advance(0, 0, {"a": value(10), "b": value(11)})
        second, _ = progress.advance(0, 0, {"a": value(20), "b": value(21)})
        assert steps_of(first + second) == [(1, 0), (1, 1)]
        ready, _ = progress.advance(1, 1, {"c": value(25)})  # the second overtakes
        assert numbers(ready[0].values) == {"b": 21, "c": 25}
        ready, _ = progress.advance(1, 0, {"c": value(15)})
        assert numbers(ready[0].values) == {"b": 11, "c": 15}

    def test_rows_leave_in_order_whichever_is_first(self, streaming):
        progress, _ = start(streaming)
        for number in range(3):
            progress.advance(0, 0, {"a": value(number), "b": value(number)})
            progress.advance(1, number, {"c": value(number)})
        assert progress.advance(2, 2, {"OUT": value(2)})[1] == []
        assert progress.advance(2, 1, {"OUT": value(1)})[1] == []
        _, rows = progress.advance(2, 0, {"OUT": value(0)})
        assert [numbers(row)["OUT"] for row in rows] == [0, 1, 2]

    def test_a_decoupled_step_behind_another_counts_for_itself(self, kit):
        graph = kit.pipe(
            [
                (kit.model("outer", decoupled=True), {"x": "IN"}, {"y": "a"}),
                (kit.model("inner", decoupled=True), {"x": "a"}, {"y": "OUT"}),
            ]
        )
        progress, _ = start(graph)
        progress.advance(0, 0, {"a": value()})
        progress.advance(0, 0, {"a": value()})
        seen = []
        for iteration, number in ((1, 100), (0, 200), (1, 300)):
            _, rows = progress.advance(1, iteration, {"OUT": value(number)})
            seen += [numbers(row)["OUT"] for row in rows]
        assert seen == [100, 200, 300]

    @given(st.permutations(range(6)), st.permutations(range(6)))
    def test_any_order_of_answers_gives_the_same_rows(self, sides, joins):
        graph = _streaming_graph()
        progress, _ = start(graph)
        for number in range(6):
            progress.advance(0, 0, {"a": value(number), "b": value(number)})
        for number in sides:
            progress.advance(1, number, {"c": value(number)})
        rows = []
        for number in joins:
            rows += progress.advance(2, number, {"OUT": value(number)})[1]
        assert [numbers(row)["OUT"] for row in rows] == list(range(6))
        assert progress.tensors_held == 0


def _streaming_graph():
    """As the fixture, which hypothesis may not use."""
    from shoal.core.signature import Signature, TensorSpec
    from shoal.scheduler.ensemble_graph import ComposingModel, EnsembleGraph, EnsembleStep

    def of(index, inputs, outputs, *, decoupled=False):
        def specs(names):
            return {name: TensorSpec(name, dtypes.INT32, (1,)) for name in names}

        signature = Signature("m", 8, specs(inputs), specs(outputs))
        return EnsembleStep(index, ComposingModel("m", -1, signature, decoupled), inputs, outputs)

    steps = (
        of(0, {"x": "IN"}, {"y": "a", "z": "b"}, decoupled=True),
        of(1, {"x": "a"}, {"y": "c"}),
        of(2, {"p": "b", "q": "c"}, {"y": "OUT"}),
    )
    producers = {"a": 0, "b": 0, "c": 1, "OUT": 2}
    return EnsembleGraph("pipe", "f", steps, ("IN",), ("OUT",), producers, decoupled=True)


class TestShapes:
    @pytest.mark.parametrize(
        ("shape", "from_batched", "dims", "to_batched", "expected"),
        [
            ((4, 16), True, (16,), True, (4, 16)),
            ((16,), False, (16,), False, (16,)),
            ((16,), False, (16,), True, (1, 16)),  # a batch of one
            ((4, 16), False, (16,), True, (4, 16)),  # it was a batch all along
            ((4, 16), True, (-1, 16), False, (4, 16)),  # the whole batch as one tensor
            ((1, 16), True, (16,), False, (16,)),  # a batch of one, unwrapped
            ((2, 16), True, (16,), False, (2, 16)),  # does not fit; the model will say so
            ((1, 16), True, (-1, 16), False, (1, 16)),
        ],
    )
    def test_batch_dimensions(self, shape, from_batched, dims, to_batched, expected):
        given_value = TensorValue(Tensor("t", dtypes.FP32, shape, raw=b""), from_batched)
        assert fitted_shape(given_value, dims, batched=to_batched) == expected

    def test_outputs_are_shaped_as_the_ensemble_says(self, kit):
        signature = kit.signature("pipe", ("IN",), (kit.spec("OUT", dims=(2, 2), reshape=(4,)),))
        row = {"OUT": TensorValue(Tensor("y", dtypes.INT32, (3, 4), raw=bytes(48)), batched=True)}
        (output,), parameters = ensemble_outputs(signature, row)
        assert (output.name, output.shape) == ("OUT", (3, 2, 2))
        assert parameters == {}

    def test_an_output_that_did_not_come_is_left_out_and_logged(self, kit, caplog):
        caplog.set_level("DEBUG", "shoal")
        signature = kit.signature("pipe", ("IN",), ("OUT",))
        outputs, _ = ensemble_outputs(signature, {"OUT": TensorValue(None, batched=True)})
        assert outputs == []
        assert "Composing models did not output tensor OUT" in caplog.text


class TestHandingOn:
    def test_no_byte_is_copied(self):
        array = np.arange(10_000, dtype=np.float32).reshape(10, 1000)
        tensor = Tensor.from_array("y", array)
        other = hand_on(tensor, "x", (10, 10, 100))
        assert (other.name, other.shape) == ("x", (10, 10, 100))
        assert np.shares_memory(other.array, array)
        received = Tensor("y", dtypes.FP32, (10_000,), raw=array.tobytes())
        assert np.shares_memory(hand_on(received, "x", (10_000,)).array, received.array)

    def test_strings_are_not_decoded_again(self):
        array = np.array([[b"a", b"b"]], object)
        tensor = Tensor("y", dtypes.BYTES, (1, 2), raw=b"never looked at", array=array)
        other = hand_on(tensor, "x", (1, 2))
        assert not other.has_raw
        assert other.array is array

    def test_a_model_gets_its_own_names_and_no_absent_tensors(self, kit):
        model = kit.model("m", inputs=("p", kit.spec("q", optional=True)))
        graph = kit.pipe([(model, {"p": "IN", "q": "MORE"}, {"y": "OUT"})], inputs=("IN", "MORE"))
        inputs = step_inputs(
            graph.steps[0], {"IN": value(1), "MORE": TensorValue(None, batched=True)}
        )
        assert list(inputs) == ["p"]
        assert inputs["p"].name == "p"

    def test_outputs_that_a_step_left_out_are_absent(self, kit):
        graph = kit.pipe(
            [(kit.model("m", outputs=("y", "z")), {"x": "IN"}, {"y": "A", "z": "B"})],
            outputs=("A", "B"),
        )
        response = Response("m", 1, outputs=[Tensor.from_array("y", np.ones((1, 1), np.int32))])
        values = response_values(graph.steps[0], ("y", "z"), response, SequenceInfo(0, 0))
        assert values["A"].tensor is response.outputs[0]
        assert values["B"].tensor is None


class TestSequences:
    @pytest.mark.parametrize(
        ("parameters", "expected"),
        [
            ({}, SequenceInfo(7, Request.SEQUENCE_START)),
            ({"other": 1}, SequenceInfo(7, Request.SEQUENCE_START)),
            ({"sequence_id": 9}, SequenceInfo(9, 0)),
            ({"sequence_id": "nine"}, SequenceInfo("nine", 0)),
            ({"sequence_start": True}, SequenceInfo(7, Request.SEQUENCE_START)),
            (
                {"sequence_start": False, "sequence_end": True},
                SequenceInfo(7, Request.SEQUENCE_END),
            ),
        ],
    )
    def test_a_response_may_say_another_place(self, parameters, expected):
        assert reported_position(parameters, SequenceInfo(7, Request.SEQUENCE_START)) == expected

    @pytest.mark.parametrize(
        "parameters",
        [
            {"sequence_id": 1.5},
            {"sequence_id": True},
            {"sequence_start": 1},
            {"sequence_end": "yes"},
        ],
    )
    def test_nonsense_is_refused(self, parameters):
        with pytest.raises(InvalidArgument, match="expected parameter 'sequence_"):
            reported_position(parameters, SequenceInfo(0, 0))

    def test_a_step_follows_the_step_before_it(self, kit):
        graph = kit.pipe(
            [(kit.model("m", inputs=("p", "q")), {"p": "IN", "q": "MORE"}, {"y": "OUT"})],
            inputs=("IN", "MORE"),
        )
        request, _ = make_request(correlation_id=1, flags=Request.SEQUENCE_START)
        own = {"IN": value(), "MORE": value()}
        assert step_position(graph.steps[0], own, request) == SequenceInfo(
            1, Request.SEQUENCE_START
        )
        told = {"IN": value(), "MORE": value()._replace(position=SequenceInfo(5, 0))}
        assert step_position(graph.steps[0], told, request) == SequenceInfo(5, 0)

    def test_two_places_are_one_too_many(self, kit, caplog):
        graph = kit.pipe(
            [(kit.model("m", inputs=("p", "q")), {"p": "IN", "q": "MORE"}, {"y": "OUT"})],
            inputs=("IN", "MORE"),
        )
        request, _ = make_request()
        told = {
            "IN": value()._replace(position=SequenceInfo(5, 0)),
            "MORE": value()._replace(position=SequenceInfo(6, 0)),
        }
        assert step_position(graph.steps[0], told, request) == SequenceInfo(5, 0)
        assert "two positions" in caplog.text

    def test_the_response_tells_of_its_sequence(self, kit):
        signature = kit.signature("pipe", ("IN",), ("OUT",))
        told = value()._replace(position=SequenceInfo(5, Request.SEQUENCE_END))
        _, parameters = ensemble_outputs(signature, {"OUT": told})
        assert parameters == {"sequence_id": 5, "sequence_start": False, "sequence_end": True}
        _, parameters = ensemble_outputs(
            signature, {"OUT": value()._replace(position=SequenceInfo(0, 0))}
        )
        assert parameters == {}
