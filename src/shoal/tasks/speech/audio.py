"""Sound files to samples: decoded by libsndfile, one channel, at the rate of the model.

speech.mp3 --decode--> [samples, channels] --mean--> one channel --resample--> 16,000 a second
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import soundfile

from shoal.core.tensor import Buffer
from shoal.errors import InvalidArgument

Samples = np.ndarray

_QUIET_SECS = 0.2  # the length of a pause at which long speech is cut
_LAST_PART = 0.2  # of a window, in which the pause is looked for


def decode(data: Buffer, title: str, rate: int, most_secs: float) -> Samples:
    """The samples of a WAV, FLAC, OGG or MP3 file. Raises InvalidArgument, which names it."""
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            seconds = file.frames / file.samplerate
            if seconds > most_secs:
                raise InvalidArgument(
                    f"{title} has {seconds:,.0f} seconds, at most {most_secs:,.0f} are allowed; "
                    f"send it in parts"
                )
            samples = file.read(int(most_secs * file.samplerate), dtype="float32", always_2d=True)
            found = file.samplerate
    except (soundfile.LibsndfileError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{title} cannot be read as sound ({error}); send a WAV, FLAC, OGG or MP3 file"
        ) from None
    if not samples.size:
        raise InvalidArgument(f"{title} has no sound in it")
    mono = samples.mean(axis=1)
    if not np.isfinite(mono).all():
        raise InvalidArgument(f"{title} has samples that are not numbers")
    return resampled(mono, found, rate)


def resampled(samples: Samples, found: int, wanted: int) -> Samples:
    """The same sound at another rate, by its spectrum; nothing above half the rate is left."""
    if found == wanted:
        return samples
    count = max(1, round(len(samples) * wanted / found))
    # Sound that ends abruptly would ring at the other end: the spectrum is that of a circle.
    margin = found // 10
    padded = np.pad(samples, (0, margin))
    whole = max(1, round(len(padded) * wanted / found))
    spectrum = np.fft.rfft(padded)
    bins = min(len(spectrum), whole // 2 + 1)
    made = np.fft.irfft(spectrum[:bins], whole) * (whole / len(padded))
    return np.asarray(made[:count], np.float32)


def windows(samples: Samples, longest: int, rate: int) -> Iterator[tuple[int, Samples]]:
    """The sound in windows of at most `longest` samples, each with its first sample.

    A window ends at the quietest moment of its last part, so that few words are cut.
    """
    begin, quiet = 0, max(1, int(_QUIET_SECS * rate))
    while len(samples) - begin > longest:
        first = begin + longest - int(longest * _LAST_PART)
        power = np.square(samples[first : begin + longest], dtype=np.float64)
        sums = np.convolve(power, np.ones(min(quiet, len(power))), "valid")
        end = first + int(sums.argmin()) + min(quiet, len(power)) // 2
        yield begin, samples[begin:end]
        begin = end
    yield begin, samples[begin:]
