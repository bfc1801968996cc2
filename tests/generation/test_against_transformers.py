"""Token by token what transformers generates: the exported files, alone and in batches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import pytest

pytestmark = pytest.mark.timeout(300)  # the first one waits for PyTorch and transformers


def sessions(folder, *names):
    return [onnxruntime.InferenceSession(str(folder / "1" / f"{name}.onnx")) for name in names]


def test_the_single_file_gives_the_same_logits(checkpoints, repository, pixel_values):
    import torch

    (session,) = sessions(repository / "single", "model")
    ids = np.random.default_rng(0).integers(5, 100, (8, 9))
    with torch.no_grad():
        theirs = checkpoints.blip(
            pixel_values=torch.from_numpy(pixel_values), input_ids=torch.from_numpy(ids)
        ).logits.numpy()
    feed = {"pixel_values": pixel_values, "input_ids": ids, "attention_mask": np.ones_like(ids)}
    np.testing.assert_allclose(session.run(None, feed)[0], theirs, rtol=1e-3, atol=1e-3)


def test_the_mask_of_the_single_file_makes_filling_up_exact(repository, pixel_values):
    (session,) = sessions(repository / "single", "model")
    ids = np.random.default_rng(0).integers(5, 100, (1, 4))
    feed = {"pixel_values": pixel_values[:1], "input_ids": ids, "attention_mask": ids * 0 + 1}
    alone = session.run(None, feed)[0]
    longer = np.pad(ids, ((0, 0), (0, 3)))
    mask = np.pad(ids * 0 + 1, ((0, 0), (0, 3)))
    feed = {"pixel_values": pixel_values[:1], "input_ids": longer, "attention_mask": mask}
    np.testing.assert_allclose(session.run(None, feed)[0][:, :4], alone, rtol=1e-4, atol=1e-4)


def test_the_decoder_with_past_states_gives_the_same_logits(checkpoints, repository, pixel_values):
    import torch

    encoder, decoder = sessions(repository / "captions", "encoder", "decoder")
    ids = np.random.default_rng(0).integers(5, 100, (8, 12))
    with torch.no_grad():
        theirs = checkpoints.blip(
            pixel_values=torch.from_numpy(pixel_values), input_ids=torch.from_numpy(ids)
        ).logits.numpy()
    names = [output.name for output in encoder.get_outputs()]
    context = dict(zip(names, encoder.run(None, {"pixel_values": pixel_values}), strict=True))
    # Four tokens at first, then one by one, in arrays with room for 16.
    past = np.zeros((4, 8, 4, 16, 8), np.float32)
    lengths = np.zeros(8, np.int64)
    begin = 0
    for end in (4, 5, 6, 7, 8, 9, 10, 11, 12):
        feed = {f"past_{number}": array for number, array in enumerate(past)}
        feed |= {"input_ids": ids[:, begin:end], "past_lengths": lengths, **context}
        logits, states = decoder.run(["logits", "states"], feed)
        np.testing.assert_allclose(logits, theirs[:, end - 1], rtol=1e-3, atol=1e-3)
        past[:, :, :, begin:end] = states
        lengths += end - begin
        begin = end


@pytest.mark.parametrize("clients", [1, 12])
def test_generated_on_the_server(server, generate_all, tokenizer, cases, clients):
    found, rows_per_step = generate_all(server, clients)
    for (case, tokens), answer in zip(cases, found, strict=True):
        ids = np.atleast_1d(answer["token_ids"]).tolist()
        assert ids == tokens, case
        words = tokenizer.encode(case["prompt"], add_special_tokens=False).ids
        whole = tokenizer.decode([*words, *tokens])
        assert tokenizer.decode(words) + answer["text_output"] == whole
        assert answer["finish_reason"] == ("stop" if tokens[-1] == 3 else "length")
        assert answer["num_output_tokens"] == len(tokens)
    assert clients == 1 or rows_per_step > 3, "requests should share steps"


@pytest.mark.parametrize("model", ["captions", "single"])
@pytest.mark.parametrize("clients", [1, 8])
def test_captions_of_both_kinds_of_model(server, photos, form, tokenizer, cases, model, clients):
    def ask(case):
        body, headers = form(
            photos[case["index"]],
            **{name: value for name, value in case.items() if name != "index"},
        )
        answer = server.post(f"/v2/models/{model}/caption", body, headers)
        assert answer.status == 200, answer
        return answer.json["captions"][0]

    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(ask, [case for case, _ in cases]))
    for (case, tokens), answer in zip(cases, found, strict=True):
        words = tokenizer.encode(case["prompt"], add_special_tokens=False).ids
        assert answer["caption"] == tokenizer.decode([*words, *tokens]), case
        assert answer["tokens"] == len(tokens)
        assert ("score" in answer) == (case["num_beams"] > 1)


@pytest.mark.parametrize("penalty", [-1.0, 0.5, 2.0])
@pytest.mark.parametrize("early", [False, True])
def test_options_of_beams(server, photos, in_json, expected, penalty, early):
    for index in range(4):
        options = {"num_beams": 4, "length_penalty": penalty, "early_stopping": early}
        body = {"image": in_json(photos[index]), "max_tokens": 18, **options}
        answer = server.post("/v2/models/captions/generate", body).json
        theirs = expected(index, max_new_tokens=18, **options)
        assert np.atleast_1d(answer["token_ids"]).tolist() == theirs


def test_a_text_model_generates_the_same(server, checkpoints):
    from tests.support.text_generators import check_texts

    check_texts(server, checkpoints.gpt2, lengths=(7, 30))
