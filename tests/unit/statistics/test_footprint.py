"""What a load took, with a process that grows as the test says."""

from __future__ import annotations

import os

import pytest

from shoal.statistics.footprint import FootprintMeter, file_bytes, resident_bytes


@pytest.fixture
def folders(tmp_path):
    for name, size in (("small", 100), ("large", 300), ("none", 0)):
        (tmp_path / name / "deep").mkdir(parents=True)
        if size:
            (tmp_path / name / "deep" / "file").write_bytes(bytes(size))
    return tmp_path


class Process:
    """Holds as many bytes as it was told."""

    def __init__(self):
        self.held = 1_000

    def __call__(self):
        return self.held


@pytest.fixture
def process():
    return Process()


@pytest.mark.parametrize(
    ("grown", "measured"),
    [(5_000, 5_000), (20, 100), (-500, 100)],  # at least its files, whatever was freed meanwhile
)
def test_alone(folders, process, grown, measured):
    with FootprintMeter(process).measure(folders / "small") as footprint:
        process.held += grown
    assert footprint.memory_bytes == measured


def test_loads_at_the_same_time_share_what_they_saw(folders, process):
    measuring = FootprintMeter(process)
    with measuring.measure(folders / "large") as large:
        with measuring.measure(folders / "small") as small:
            process.held += 4_000
        process.held += 4_000
    assert small.memory_bytes == 1_000  # a quarter of the files, a quarter of the growth
    assert large.memory_bytes == 6_000


def test_a_load_that_fails_leaves_nothing_behind(folders, process):
    measuring = FootprintMeter(process)
    with pytest.raises(ValueError, match="no"), measuring.measure(folders / "large"):
        raise ValueError("no")
    with measuring.measure(folders / "small") as footprint:
        process.held += 400
    assert footprint.memory_bytes == 400


def test_no_files(folders, process):
    measuring = FootprintMeter(process)
    with measuring.measure(folders / "none") as one, measuring.measure(folders / "none") as other:
        process.held += 400
    assert (one.memory_bytes, other.memory_bytes) == (400, 400)  # nobody knows better


def test_the_size_of_files(folders):
    assert file_bytes(folders) == 400
    assert file_bytes(folders / "gone") == 0
    (folders / "small" / "link").symlink_to(folders / "nowhere")
    assert file_bytes(folders / "small") == 100


def test_the_memory_of_processes():
    assert resident_bytes() > 1 << 20
    assert resident_bytes(os.getppid()) > 0
    assert resident_bytes(2**30) == 0
