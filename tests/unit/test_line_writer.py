"""Lines reach their file; a file that cannot be written harms nobody."""

import threading

import pytest

from shoal import line_writer
from shoal.errors import InvalidArgument
from shoal.line_writer import LineWriter


@pytest.fixture
def path(tmp_path):
    return tmp_path / "access.log"


def test_lines_are_written_in_order(path):
    writer = LineWriter(str(path), "access log")
    lines = [f"line {number} \udcff" for number in range(1000)]
    for line in lines:
        writer.write(line)
    writer.close()
    expected = [f"line {number} \\udcff" for number in range(1000)]
    assert path.read_text("utf-8").splitlines() == expected


def test_lines_of_many_threads_are_whole(path):
    writer = LineWriter(str(path), "access log")

    def write(name):
        for _ in range(500):
            writer.write(name * 100)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    lines = path.read_text().splitlines()
    assert sorted(lines) == sorted(name * 100 for name in "abcd" for _ in range(500))


def test_a_renamed_file_is_continued_in_a_new_one(path):
    writer = LineWriter(str(path), "access log")
    writer.write("before")
    writer.close()
    writer = LineWriter(str(path), "access log")
    path.rename(path.with_suffix(".1"))
    writer.reopen()
    writer.write("after")
    writer.close()
    assert path.with_suffix(".1").read_text() == "before\n"
    assert path.read_text() == "after\n"


def test_a_file_that_cannot_be_opened(tmp_path):
    with pytest.raises(
        InvalidArgument, match=r"the audit log '.*' cannot be written: No such file"
    ):
        LineWriter(str(tmp_path / "missing" / "audit.log"), "audit log")


def test_a_full_disk_loses_lines_and_says_so_once(caplog):
    """Every write to /dev/full fails, as on a full disk."""
    writer = LineWriter("/dev/full", "access log")
    for _ in range(10):
        writer.write("lost")
        writer._write_waiting()
    writer.close()
    (record,) = caplog.records
    assert "lines of the access log were lost" in record.getMessage()
    assert "No space left" in record.getMessage()


class SmallDisk:
    """A file with space for so many bytes; a write beyond it fails, after what fits."""

    def __init__(self, space):
        self.space = space
        self.content = b""

    def write(self, data):
        if not self.space:
            raise OSError(28, "No space left on device")
        fits = data[: self.space]
        self.space -= len(fits)
        self.content += fits
        return len(fits)

    def flush(self):
        pass

    def close(self):
        pass


def test_a_line_that_is_cut_by_a_full_disk_is_ended_before_the_next(path, monkeypatch, caplog):
    monkeypatch.setattr(LineWriter, "_run", lambda self: self._closing.wait())
    writer = LineWriter(str(path), "access log")
    writer._file.close()
    disk = writer._file = SmallDisk(9)
    for text in ("first", "second", "third"):
        writer.write(text)
    writer._write_waiting()
    assert disk.content == b"first\nsec"
    assert "2 lines of the access log were lost" in caplog.text
    disk.space = 100
    writer.write("fourth")
    writer._write_waiting()
    assert disk.content == b"first\nsec\nfourth\n"
    writer.close()


def test_without_a_new_file_the_old_one_is_used_on(path, tmp_path, caplog):
    writer = LineWriter(str(path), "access log")
    path.rename(tmp_path / "renamed")
    path.mkdir()  # cannot be opened as a file
    writer.reopen()
    writer.write("not lost")
    writer.close()
    assert (tmp_path / "renamed").read_text() == "not lost\n"
    assert "the access log goes on in its old file" in caplog.text


def test_lines_beyond_the_bound_are_lost(path, monkeypatch, caplog):
    monkeypatch.setattr(line_writer, "_MOST_LINES", 5)
    monkeypatch.setattr(LineWriter, "_run", lambda self: self._closing.wait())
    writer = LineWriter(str(path), "access log")
    for number in range(8):
        writer.write(str(number))
    writer._write_waiting()
    assert path.read_text().split() == ["0", "1", "2", "3", "4"]
    assert "3 lines of the access log were lost: there were more" in caplog.text
    writer.close()
    writer._file.close()


def test_a_closed_standard_output_is_no_reason_to_end(monkeypatch, caplog):
    class Closed:
        def write(self, _data):
            raise ValueError("write to closed file")

    monkeypatch.setattr("sys.stdout", type("Out", (), {"buffer": Closed()})())
    writer = LineWriter("-", "access log")
    writer.write("lost")
    writer.close()
    assert "write to closed file" in caplog.text
