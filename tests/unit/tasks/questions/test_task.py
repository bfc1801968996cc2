"""The task: what callers may ask, what goes to the model, and what comes back."""

import asyncio
import dataclasses
import re

import numpy as np
import pytest

from shoal.core.dtypes import FP32, INT32
from shoal.core.signature import Signature, TensorSpec
from shoal.errors import ConfigError, Internal, InvalidArgument, Unavailable
from shoal.tasks.questions.task import QuestionAnswering
from shoal.tasks.request import File, TaskRequest
from shoal.tasks.tokenizer import pad_token_of

SMALL = {"max_length": 64, "stride": 8, "windows_per_request": 4}


def answer(task, **values):
    return asyncio.run(asyncio.wait_for(task.perform(TaskRequest((), values)), 20))


def refused(task, **values):
    with pytest.raises(InvalidArgument) as caught:
        answer(task, **values)
    return caught.value.message


# ---- answers


def test_the_answer_and_where_it_is(model):
    context = model(settings=SMALL)
    found = answer(QuestionAnswering(context), text="It is Z there.", question="What?")
    score = found.pop("score")
    assert 0 < score < 1
    assert found == {
        "model_name": "reader",
        "model_version": "3",
        "answer": "Z",
        "start": 6,
        "end": 7,
    }
    assert context.counted == {"preprocess": 1, "postprocess": 1}
    assert [request["input_ids"].shape[0] for request in context.requests] == [1]


@pytest.mark.parametrize(
    ("text", "answered"),
    [
        ("the za\u0301 of it", "za\u0301"),  # an accent of its own at the end
        ("die Zöe da", "Zöe"),
        ("\U0001f600 \U0001f600 z \U0001f600", "z"),
        ("first\r\nza\r\nlast", "za"),
        ("\0a\0 z\0", "z"),
        ("\u200bz\u200b", "z"),
        ("東京 z 東京", "z"),
        ("[SEP] [CLS] z", "z"),
        ("a\u0301\u0323b z\u0301\u0323, b", "z\u0301\u0323"),
    ],
)
def test_offsets_count_characters_of_the_text_as_it_was_sent(model, text, answered):
    found = answer(QuestionAnswering(model(settings=SMALL)), text=text, question="b?")
    assert text[found["start"] : found["end"]] == found["answer"] == answered


def test_the_text_may_be_a_file(model):
    task = QuestionAnswering(model(settings={**SMALL, "max_characters": 10}))

    def sent(data):
        return asyncio.run(
            task.perform(TaskRequest([File(data, "text", "a.txt")], {"question": "b"}))
        )

    assert sent("ä z ä".encode())["start"] == 2
    for data, sentence in [
        (b"z\xff", "not UTF-8 text: invalid start byte at byte 1"),
        (b"z" * 11, "11 characters, at most 10"),
        (b"z" * 41, "more than 10 characters"),
        (b" ", "'text' is empty"),
    ]:
        with pytest.raises(InvalidArgument, match=sentence):
            sent(data)
    photo = TaskRequest([File(b"...", "image", "cat.jpg")], {"question": "b"})
    with pytest.raises(InvalidArgument, match="'text' is missing"):
        asyncio.run(task.perform(photo))


def test_answers_are_whole_words(model):
    found = answer(QuestionAnswering(model(settings=SMALL)), text="see puzle here", question="b")
    assert found["answer"] == "puzle"


def test_a_long_text_is_read_in_windows(model):
    context = model(settings=SMALL)
    text = "ab " * 200 + "z" + " cd" * 200
    found = answer(QuestionAnswering(context), text=text, question="b?")
    assert (found["start"], found["end"]) == (600, 601)
    rows = [len(request["input_ids"]) for request in context.requests]
    assert sum(rows) == 16  # 801 tokens in pieces of 59 that share 8
    assert max(rows) == 4
    assert {request["input_ids"].shape[1] for request in context.requests} == {64}
    assert context.most_under_way == 2, "a long text must leave others their turn"


def test_several_questions_to_one_text(model):
    context = model(settings=SMALL)
    found = answer(QuestionAnswering(context), text="a z b", questions=["x?", "what is it?"])
    assert [(one["question"], one["answer"]) for one in found["answers"]] == [
        ("x?", "z"),
        ("what is it?", "z"),
    ]
    (request,) = context.requests
    assert request["input_ids"].shape[0] == 2
    assert request["attention_mask"].sum(axis=1).tolist() == [8, 15]


def test_alternatives_do_not_overlap(model):
    found = answer(QuestionAnswering(model(settings=SMALL)), text="z or z z.", question="b", top=3)
    every = [found, *found["alternatives"]]
    assert len(every) == 3
    places = [set(range(one["start"], one["end"])) for one in every]
    assert not (places[0] & places[1] | places[0] & places[2] | places[1] & places[2])
    assert [one["score"] for one in every] == sorted((o["score"] for o in every), reverse=True)


def test_top_may_be_a_setting(model):
    task = QuestionAnswering(model(settings={**SMALL, "top": 2}))
    assert len(answer(task, text="z a b", question="b")["alternatives"]) == 1


# ---- Unknown


def test_below_the_threshold_it_is_unknown(model):
    task = QuestionAnswering(model(settings={**SMALL, "threshold": 0.5}))
    found = answer(task, text="a b c d e", question="b")
    best = found.pop("best")
    assert (found["answer"], found["start"], found["end"]) == ("Unknown", None, None)
    assert found["score"] == pytest.approx(1 - best["score"], abs=1e-5)
    assert best["answer"] in "a b c d e"
    assert "best" not in answer(task, text="a b z d e", question="b")


def test_a_call_may_bring_its_own_threshold(model):
    task = QuestionAnswering(model(settings={**SMALL, "threshold": 0.5, "unknown": "No idea"}))
    assert answer(task, text="a b c", question="b")["answer"] == "No idea"
    assert answer(task, text="a b c", question="b", threshold=0)["answer"] != "No idea"
    assert answer(task, text="a z c", question="b", threshold="1")["answer"] == "No idea"


@pytest.mark.parametrize("threshold", [None, 0])
def test_without_a_threshold_there_is_always_an_answer(model, threshold):
    task = QuestionAnswering(model(settings={**SMALL, "threshold": threshold}))
    assert "best" not in answer(task, text="a b c", question="b")


def test_the_score_is_calibrated_where_settings_say_how(model):
    calibration = {"margin": 0, "fill": 0, "fill_squared": 0, "bias": 0}
    task = QuestionAnswering(model(settings={**SMALL, "calibration": calibration}))
    assert answer(task, text="a z", question="b")["score"] == 0.5


# ---- what is wrong


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"question": "b"}, "'text' is missing"),
        ({"text": "a"}, "'question' is missing"),
        ({"text": "", "question": "b"}, "'text' is empty"),
        ({"text": " \n\t", "question": "b"}, "'text' is empty"),
        ({"text": "a", "question": "  "}, "the question is empty"),
        ({"text": ["a"], "question": "b"}, "'text' must be a text, not a list"),
        ({"text": "a", "question": 5}, "'question' must be a text, not a number"),
        ({"text": "a", "question": {}}, "'question' must be a text, not an object"),
        ({"text": "a" * 101, "question": "b"}, "'text' has 101 characters, at most 100"),
        ({"text": "a", "question": "b " * 50}, "the question has 50 tokens .* at most 45"),
        ({"text": "a", "questions": []}, "from 1 to 3 elements, not 0"),
        ({"text": "a", "questions": ["b"] * 4}, "from 1 to 3 elements, not 4"),
        ({"text": "a", "questions": "b"}, "'questions' must be a list of texts"),
        ({"text": "a", "questions": ["b", None]}, "'questions' must be a list of texts"),
        ({"text": "a", "questions": ["b", ""]}, "the question is empty"),
        ({"text": "a", "questions": ["b" * 101]}, "a question has 101 characters"),
        ({"text": "a", "question": "b", "questions": ["b"]}, "not both"),
        ({"text": "a", "question": "b", "top": 0}, "'top' must be a whole number from 1 to 20"),
        ({"text": "a", "question": "b", "threshold": 2}, "'threshold' must be a number"),
        ({"text": "\u200b\0", "question": "b"}, "'text' has no character"),
        ({"text": "a", "question": "\u200b"}, "the question has no character"),
        ({"text": "a\ud800", "question": "b"}, "half a surrogate pair"),
        ({"text": "a", "question": "\udfff"}, "half a surrogate pair"),
    ],
)
def test_wrong_use_is_refused_with_a_sentence(model, values, sentence):
    context = model(settings={**SMALL, "max_characters": 100, "max_questions": 3})
    message = refused(QuestionAnswering(context), **values)
    assert re.search(sentence, message), message
    assert not context.requests


def test_a_wrong_call_does_not_spoil_its_neighbours(model):
    task = QuestionAnswering(model(settings=SMALL))
    calls = [{"text": "a z", "question": "b"}, {"text": "\ud800", "question": "b"}] * 8

    async def many():
        asked = [task.perform(TaskRequest((), values)) for values in calls]
        return await asyncio.gather(*asked, return_exceptions=True)

    found = asyncio.run(many())
    assert [type(one) for one in found] == [dict, InvalidArgument] * 8


def test_what_the_model_fails_with_is_raised_and_the_rest_given_up(model):
    context = model(settings=SMALL)
    context.failure = Unavailable("queue is full")
    with pytest.raises(Unavailable, match="queue is full"):
        answer(QuestionAnswering(context), text="ab " * 400, question="b")
    assert len(context.requests) < 6, "of 10"


def test_leaving_cancels_what_the_model_was_asked(model):
    context = model(settings=SMALL)
    task = QuestionAnswering(context)

    async def leave():
        context.hold, context.busy = asyncio.Event(), asyncio.Event()
        asked = {"text": "ab " * 400, "question": "b"}
        call = asyncio.ensure_future(task.perform(TaskRequest((), asked)))
        await asyncio.wait_for(context.busy.wait(), 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(leave())
    assert (context.cancelled, context.under_way) == (2, 0)


def test_a_model_without_numbers_is_our_fault(model):
    context = model(settings=SMALL)

    async def infer(inputs, outputs=(), parameters=None):
        return {name: np.full(inputs["input_ids"].shape, np.nan) for name in outputs}

    context.infer = infer
    with pytest.raises(Internal, match="no finite numbers"):
        answer(QuestionAnswering(context), text="a", question="b")


def test_a_model_that_gives_other_shapes_is_our_fault(model):
    context = model(settings=SMALL)

    async def infer(inputs, outputs=(), parameters=None):
        return {name: np.zeros((1, 2)) for name in outputs}

    context.infer = infer
    with pytest.raises(Internal, match=r"the shape \[1, 2\] for 1 rows of"):
        answer(QuestionAnswering(context), text="a b c", question="b")


# ---- models of other forms


def test_a_model_of_fixed_length_gets_rows_of_that_length(model):
    context = model(dims=(64,), settings={"stride": 8})
    assert answer(QuestionAnswering(context), text="a z", question="b")["answer"] == "z"
    assert context.requests[0]["input_ids"].shape == (1, 64)


def test_a_model_without_mask_gets_equal_lengths_only(model):
    context = model(inputs=1, settings=SMALL)
    answer(QuestionAnswering(context), text="a z", questions=["b", "c", "d e f g"])
    assert sorted(request["input_ids"].shape for request in context.requests) == [(1, 9), (2, 6)]
    assert set(context.requests[0]) == {"input_ids"}


def test_a_model_without_batch_dimension_in_its_config(model):
    context = model(rows=0, dims=(-1, -1), settings=SMALL)
    assert answer(QuestionAnswering(context), text="ab " * 200 + "z", question="b")["start"] == 600


def test_a_model_of_one_row(model):
    context = model(rows=0, dims=(1, -1), settings=SMALL)
    answer(QuestionAnswering(context), text="ab " * 100, question="b")
    assert {len(request["input_ids"]) for request in context.requests} == {1}


def test_other_whole_numbers(model):
    context = model(settings=SMALL)
    names = list(context.signature.inputs)
    inputs = {name: TensorSpec(name, INT32, (-1,)) for name in names}
    context.signature = dataclasses.replace(context.signature, inputs=inputs)
    answer(QuestionAnswering(context), text="a", question="b")
    assert {array.dtype for array in context.requests[0].values()} == {np.dtype("int32")}


@pytest.mark.parametrize(
    ("inputs", "outputs", "sentence"),
    [
        ({"pixels": (INT32, (-1,))}, {}, "the model has an input 'pixels'"),
        ({}, {}, "the model has no input 'input_ids'"),
        ({"input_ids": (FP32, (-1,))}, {}, "'input_ids' is FP32"),
        ({"input_ids": (INT32, (-1,))}, {}, "no output 'start_logits'"),
        (
            {"input_ids": (INT32, (-1,))},
            {"start_logits": (FP32, (-1,)), "end_logits": (INT32, (-1,))},
            "'end_logits' is INT32",
        ),
        (
            {"input_ids": (INT32, (-1, 3))},
            {"start_logits": (FP32, (-1,)), "end_logits": (FP32, (-1,))},
            r"the dims \[-1, 3\], not a row",
        ),
    ],
)
def test_models_that_answer_no_questions_are_not_loaded(model, inputs, outputs, sentence):
    context = model(settings=SMALL)
    context.signature = Signature(
        "reader",
        8,
        {name: TensorSpec(name, *spec) for name, spec in inputs.items()},
        {name: TensorSpec(name, *spec) for name, spec in outputs.items()},
    )
    with pytest.raises(ConfigError, match=sentence):
        QuestionAnswering(context)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_length": 16}, "have no room for a question"),
        ({"max_length": 64, "stride": 30}, "neighbours share 30"),
        ({"unknown": " "}, "unknown: it is empty"),
        ({"threshold": 1.5}, "threshold: found 1.5"),
        ({"threshold": "high"}, "threshold: found 'high'"),
        ({"calibration": {"margin": 1}}, "calibration: found"),
        ({"calibration": [1, 2]}, "numbers margin, fill, fill_squared, bias"),
        ({"tokenizer": "task.json"}, "is not a tokenizer"),
        ({"tokenizer": "none.json"}, "there is no file 'none.json'"),
        ({"windows_per_request": 0}, "windows_per_request: found 0"),
    ],
)
def test_wrong_settings_are_told(model, settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        QuestionAnswering(model(settings=settings))


def test_all_settings_are_known(model):
    settings = {
        **SMALL,
        "tokenizer": "tokenizer.json",
        "max_answer_length": 5,
        "max_characters": 10,
        "max_questions": 2,
        "top": 2,
        "unknown": "?",
        "threshold": 0.5,
        "calibration": {"margin": 1, "fill": 0, "fill_squared": 0, "bias": 0},
    }
    context = model(settings=settings)
    QuestionAnswering(context)
    context.settings.check_all_read()


def test_rows_are_filled_up_with_the_tokenizers_own_filler(words):
    assert pad_token_of(words) == 0
    assert words.token_to_id("[PAD]") == 0
