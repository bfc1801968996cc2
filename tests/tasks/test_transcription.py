"""Speech to text with a small Whisper: the tokens are those of transformers."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import openai
import pytest

from shoal.errors import InvalidArgument
from shoal.export.exporting import export
from shoal.testing.server import running_server

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("soundfile")

from shoal.frontends.http.openai.speech import subtitles  # noqa: E402
from shoal.tasks.speech import audio  # noqa: E402
from shoal.tasks.speech.features import SpeechFeatures  # noqa: E402
from tests.support.checkpoints import whisper_checkpoint  # noqa: E402
from tests.support.speech import RATE, expected_text, file_of, tones  # noqa: E402

pytestmark = pytest.mark.timeout(300)  # the first one waits for PyTorch and transformers


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speech")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = whisper_checkpoint(folder / "whisper")
        export(folder / "whisper", folder / "models" / "whisper")
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "whisper" / "tokenizer.json")
        )
    yield SimpleNamespace(model=model, tokenizer=tokenizer, folder=folder / "models")
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def running(made):
    with running_server(made.folder) as running:
        yield running


def wanted(made, samples, *options, **named):
    return expected_text(made.model, made.tokenizer, samples, *options, **named)


def transcribed(running, data, query="?language=en"):
    answer = running.post(f"/transcribe{query}", data, {"Content-Type": "audio/wav"})
    assert answer.status == 200, answer
    return answer.json


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("?language=en", {}),
        ("?language=de", {"language": "de"}),
        ("?language=de&task=translate", {"language": "de", "purpose": "translate"}),
    ],
)
def test_the_text_is_that_of_transformers(made, running, query, options):
    for samples in (tones(0.7, 300, 900), tones(0.9, 2000, 100, 500)):
        found = transcribed(running, file_of(samples), query)
        assert found["text"] == wanted(made, samples, **options)
        assert found["duration"] == pytest.approx(len(samples) / RATE, abs=1e-3)
    assert len({wanted(made, tones(0.7, pitch)) for pitch in (100, 900, 3000)}) > 1


def test_what_was_said_before_changes_the_text(made, running):
    samples = tones(0.7, 300, 900)
    ids = made.tokenizer.encode(" hello", add_special_tokens=False)
    before = [made.tokenizer.convert_tokens_to_ids("<|startofprev|>"), *ids]
    found = transcribed(running, file_of(samples), "?language=en&prompt=hello")
    assert found["text"] == wanted(made, samples, before=before)


def test_the_language_is_detected(made, running):
    found = transcribed(running, file_of(tones(0.7, 300)), "")
    assert found["text"] == wanted(made, tones(0.7, 300), found["language"])


def test_long_speech_is_cut_at_its_pauses(made, running):
    parts = [tones(0.75, 300, 900), tones(0.7, 700), tones(0.5, 400, 1200)]
    silence = np.zeros(int(0.2 * RATE), np.float32)
    whole = np.concatenate([parts[0], silence, parts[1], silence, parts[2]])
    found = transcribed(running, file_of(whole))
    segments = found["segments"]
    assert len(segments) == 3
    assert [one["end"] for one in segments[:-1]] == [one["start"] for one in segments[1:]]
    for segment in segments:
        samples = whole[round(segment["start"] * RATE) : round(segment["end"] * RATE)]
        assert segment["text"] == wanted(made, samples)
    pauses = [0.75, 0.95, 1.65, 1.85]
    assert pauses[0] <= segments[0]["end"] <= pauses[1]
    assert pauses[2] <= segments[1]["end"] <= pauses[3]
    assert found["text"] == " ".join(one["text"] for one in segments)


@pytest.mark.parametrize(
    ("form", "subtype"), [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("MP3", "MPEG_LAYER_III")]
)
def test_kinds_of_files(form, subtype):
    samples = tones(0.5, 440, 880)
    stereo = np.stack([samples, samples], axis=1)
    found = audio.decode(file_of(stereo, 44_100, form, subtype), "it", RATE, 60)
    expected = len(samples) * RATE / 44_100
    assert len(found) == pytest.approx(expected, rel=0.25 if form == "MP3" else 1e-3)


def test_another_rate_is_the_same_sound():
    slow, fast = tones(0.5, 440), np.sin(2 * np.pi * 440 * np.arange(24_000) / 48_000) / 2
    found = audio.resampled(fast.astype(np.float32), 48_000, RATE)
    assert len(found) == len(slow)
    assert np.abs(found - slow)[200:-200].max() < 0.01


def test_features_are_those_of_transformers():
    extract = transformers.WhisperFeatureExtractor(feature_size=128, chunk_length=1)
    samples = tones(0.6, 300, 5000)
    found = SpeechFeatures(128, 100)(samples)
    theirs = extract(samples, sampling_rate=RATE, return_tensors="np").input_features[0]
    # Logarithms of quiet bands show how a processor rounds in its Fourier transform.
    np.testing.assert_allclose(found, theirs, atol=1e-4)


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # of the client's translations
def test_openais_client(made, running):
    samples = tones(0.7, 300, 900)
    text = wanted(made, samples)
    address = f"http://{running.http_address}/v1"
    with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
        sent = {"model": "whisper", "file": ("speech.wav", file_of(samples)), "language": "en"}
        assert client.audio.transcriptions.create(**sent).text == text
        verbose = client.audio.transcriptions.create(**sent, response_format="verbose_json")
        assert (verbose.text, verbose.segments[0].text) == (text, text)
        plain = client.audio.transcriptions.create(**sent, response_format="text")
        assert plain.strip() == text
        sent.pop("language")
        english = client.audio.translations.create(**sent)
        language = transcribed(running, file_of(samples), "")["language"]
        assert english.text == wanted(made, samples, language, "translate")
        with pytest.raises(openai.BadRequestError) as raised:
            client.audio.transcriptions.create(**sent, language="xx")
        assert raised.value.param == "language"
        with pytest.raises(openai.BadRequestError) as raised:
            client.audio.transcriptions.create(model="whisper", file=("it.wav", b"no sound"))
        assert raised.value.param == "file"
        assert "whisper" in [model.id for model in client.models.list()]


def test_subtitles():
    segments = [
        {"start": 0.0, "end": 1.5, "text": "hello"},
        {"start": 61, "end": 3661.25, "text": "x"},
    ]
    assert subtitles(segments, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\nhello\n\n2\n00:01:01,000 --> 01:01:01,250\nx\n"
    )
    assert subtitles(segments, "vtt").startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nhello\n")


def test_what_is_wrong_is_said(running):
    with pytest.raises(InvalidArgument, match="at most 1 are allowed"):
        audio.decode(file_of(tones(1.5, 300)), "the file", RATE, 1)
    with pytest.raises(InvalidArgument, match="has no sound in it"):
        audio.decode(file_of(np.zeros(0, np.float32)), "the file", RATE, 1)
    for data, query, words in (
        (b"no sound", "", "the file cannot be read as sound"),
        (b"", "", "the request has 0 files"),
        (file_of(tones(0.5, 300)), "?language=xx", "'language' must be one of de, en"),
        (file_of(tones(0.5, 300)), "?task=sing", "'task' must be transcribe or translate"),
    ):
        answer = running.post(f"/transcribe{query}", data, {"Content-Type": "audio/wav"})
        assert (answer.status, words in answer.error) == (400, True), answer.error
