"""An ensemble's graph: what is refused at load, and what runs for which outputs."""

from __future__ import annotations

import pytest

from shoal.core import dtypes
from shoal.errors import ConfigError
from shoal.scheduler.ensemble_graph import SINK, fits, with_labels, with_transaction_policy


def chain(kit, first=None, second=None, **options):
    first = first or kit.model("first")
    second = second or kit.model("second")
    steps = [(first, {"x": "IN"}, {"y": "mid"}), (second, {"x": "mid"}, {"y": "OUT"})]
    return kit.pipe(steps, **options)


def diamond(kit):
    """IN feeds two steps side by side; a third joins them."""
    return kit.pipe(
        [
            (kit.model("left"), {"x": "IN"}, {"y": "a"}),
            (kit.model("right", outputs=("y", "z")), {"x": "IN"}, {"y": "b", "z": "SIDE"}),
            (kit.model("join", inputs=("p", "q")), {"p": "a", "q": "b"}, {"y": "OUT"}),
        ],
        outputs=("OUT", "SIDE"),
    )


def test_a_chain(kit):
    graph = chain(kit)
    plan = graph.plan(())
    assert plan.outputs == ("OUT",)
    assert plan.consumers == {"IN": (0,), "mid": (1,), "OUT": (SINK,)}
    assert plan.step_outputs == {0: ("y",), 1: ("y",)}
    assert not graph.decoupled


def test_a_tensor_may_feed_many(kit):
    plan = diamond(kit).plan(())
    assert plan.consumers["IN"] == (0, 1)
    assert plan.wanted[2] == ("a", "b")
    assert plan.wanted[SINK] == ("OUT", "SIDE")


def test_only_what_the_outputs_need_is_run(kit):
    plan = diamond(kit).plan(("SIDE",))
    assert set(plan.step_outputs) == {1}
    assert plan.step_outputs[1] == ("z",)  # and of that step only what is needed
    assert plan.consumers["IN"] == (1,)


def test_outputs_come_in_the_order_asked_for(kit):
    assert diamond(kit).plan(("SIDE", "OUT")).outputs == ("SIDE", "OUT")


def test_plans_are_made_once(kit):
    graph = diamond(kit)
    assert graph.plan(("SIDE",)) is graph.plan(("SIDE",))


def test_one_tensor_may_feed_two_inputs_of_a_step(kit):
    graph = kit.pipe(
        [(kit.model("twice", inputs=("p", "q")), {"p": "IN", "q": "IN"}, {"y": "OUT"})]
    )
    assert graph.plan(()).wanted[0] == ("IN",)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ((1, 2), (1, 2), True),
        ((-1, 2), (5, 2), True),
        ((5, -1), (-1, 2), True),
        ((1, 2), (1, 3), False),
        ((1,), (1, 1), False),
        ((), (), True),
    ],
)
def test_shapes_fit(left, right, same):
    assert fits(left, right) is same


class TestRefused:
    """Every error names the file, the field, what is wrong and what to write."""

    def refused(self, build):
        with pytest.raises(ConfigError) as caught:
            build()
        return caught.value

    def test_an_input_the_model_does_not_have(self, kit):
        steps = [(kit.model("m", inputs=("pixels",)), {"pixel": "IN"}, {"y": "OUT"})]
        error = self.refused(lambda: kit.pipe(steps))
        assert error.message == (
            "models/pipe/config.pbtxt: ensemble_scheduling.step[0].input_map: in ensemble pipe, "
            "ensemble tensor IN is mapping to non-existing input pixel in model m. "
            'Did you mean key: "pixels"?'
        )

    def test_an_output_the_model_does_not_have(self, kit):
        steps = [(kit.model("m", outputs=("y", "z")), {"x": "IN"}, {"scores": "OUT"})]
        error = self.refused(lambda: kit.pipe(steps))
        assert error.field == "ensemble_scheduling.step[0].output_map"
        assert "OUT is mapped from non-existing output scores in model m" in error.message
        assert error.fix == "Its outputs are: y, z"

    def test_an_input_that_nothing_feeds(self, kit):
        steps = [(kit.model("m", inputs=("x", "mask")), {"x": "IN"}, {"y": "OUT"})]
        error = self.refused(lambda: kit.pipe(steps))
        assert "input mask in model m is not mapped to any ensemble tensors" in error.message
        assert 'key: "mask"' in error.fix

    def test_an_optional_input_may_be_left_out(self, kit):
        inputs = ("x", kit.spec("mask", optional=True))
        kit.pipe([(kit.model("m", inputs=inputs), {"x": "IN"}, {"y": "OUT"})])

    def test_batches_larger_than_a_step_takes(self, kit):
        error = self.refused(lambda: chain(kit, second=kit.model("small", max_batch_size=4)))
        assert error.field == "max_batch_size"
        assert (
            "ensemble pipe allows maximum batch size 8, but it contains model small which only "
            "allows maximum batch size to be 4"
        ) in error.message

    def test_datatypes_that_differ_between_steps(self, kit):
        floats = kit.model("floats", inputs=(kit.spec("x", dtypes.FP32),))
        error = self.refused(lambda: chain(kit, second=floats))
        assert error.field == "ensemble_scheduling.step[1].input_map"
        assert (
            "ensemble tensor mid: inconsistent data type: TYPE_INT32 is inferred from model first "
            "while TYPE_FP32 is inferred from model floats"
        ) in error.message

    def test_datatypes_that_differ_from_the_ensembles_own(self, kit):
        error = self.refused(lambda: chain(kit, outputs=(kit.spec("OUT", dtypes.FP32),)))
        assert error.field == "output[0]"
        error = self.refused(lambda: chain(kit, inputs=(kit.spec("IN", dtypes.FP32),)))
        assert error.field == "ensemble_scheduling.step[0].input_map"

    def test_shapes_that_differ_between_steps(self, kit):
        wide = kit.model("wide", inputs=(kit.spec("x", dims=(3,)),))
        error = self.refused(lambda: chain(kit, second=wide))
        assert (
            "ensemble tensor mid: inconsistent shape: [-1,1] is inferred from model first while "
            "[-1,3] is inferred from model wide"
        ) in error.message

    @pytest.mark.parametrize("where", ["step", "output"])
    def test_tensors_that_do_not_come_equally_often(self, kit, where):
        stream = (kit.model("stream", decoupled=True), {"x": "IN"}, {"y": "words"})
        if where == "step":
            both = kit.model("both", inputs=("p", "q"))
            steps = [stream, (both, {"p": "IN", "q": "words"}, {"y": "OUT"})]
            error = self.refused(lambda: kit.pipe(steps))
            assert error.field == "ensemble_scheduling.step[1].input_map"
        else:
            steps = [stream, (kit.model("once"), {"x": "IN"}, {"y": "OUT"})]
            error = self.refused(lambda: kit.pipe(steps, outputs=("OUT", "words")))
            assert error.field == "output"
        assert "receives inputs originated from different decoupled models" in error.message


class TestBatching:
    """Batching models and others may follow each other where whole shapes agree."""

    def test_a_batching_model_before_one_with_a_dimension_more(self, kit):
        whole = (kit.spec("x", dims=(-1, -1)),), (kit.spec("y", dims=(-1, -1)),)
        chain(kit, second=kit.model("whole", *whole, max_batch_size=0))

    def test_a_batching_model_before_one_without_batches(self, kit):
        chain(kit, second=kit.model("single", max_batch_size=0))

    def test_an_ensemble_without_batches_of_models_with(self, kit):
        tensors = {
            "inputs": (kit.spec("IN", dims=(8, 1)),),
            "outputs": (kit.spec("OUT", dims=(8, 1)),),
        }
        chain(kit, max_batch_size=0, **tensors)

    def test_a_reshape_of_the_ensemble_counts(self, kit):
        chain(kit, inputs=(kit.spec("IN", dims=(1, 1, 1), reshape=(1,)),))


class TestDecoupled:
    def test_one_decoupled_step_makes_the_ensemble_so(self, kit):
        graph = chain(kit, first=kit.model("stream", decoupled=True))
        assert graph.decoupled

    def test_the_config_says_it(self, kit):
        stream, plain = kit.model("stream", decoupled=True), kit.model("plain")
        steps = [(stream, {"x": "IN"}, {"y": "mid"}), (plain, {"x": "mid"}, {"y": "OUT"})]
        config = kit.pipe_config(steps)
        told = with_transaction_policy(config, kit.pipe(steps))
        assert told.model_transaction_policy.decoupled
        single = [(plain, {"x": "IN"}, {"y": "OUT"})]
        back = with_transaction_policy(told, kit.pipe(single))
        assert not back.model_transaction_policy.decoupled

    def test_two_outputs_of_a_decoupled_step_may_meet_again(self, kit):
        kit.pipe(
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


def test_labels_come_from_the_step_that_writes_the_output(kit):
    labelled = kit.spec("y", labels=("cat", "dog"))
    graph = kit.pipe(
        [(kit.model("m", outputs=(labelled, "z")), {"x": "IN"}, {"y": "OUT", "z": "OWN"})],
        outputs=("OUT", "OWN"),
    )
    own = kit.signature("pipe", ("IN",), ("OUT", kit.spec("OWN", labels=("yes",))))
    outputs = with_labels(own, graph).outputs
    assert outputs["OUT"].labels == ("cat", "dog")
    assert outputs["OWN"].labels == ("yes",)
