"""In which order the files of a model are stored, and what belongs to it."""

from __future__ import annotations

from shoal.storage.pushing import local_files, stages


def write(folder, files):
    for path, size in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"x" * size)


def test_versions_come_last_and_end_with_their_largest_file(tmp_path):
    sizes = {"10/model.onnx": 1, "10/model.onnx.data": 9, "9/model.onnx": 5}
    write(tmp_path, {"config.pbtxt": 3, "labels.txt": 2, "tokenizer/vocabulary.json": 99, **sizes})
    ordered = [sorted(stage) for stage in stages(local_files(tmp_path)) if stage]
    assert ordered == [
        ["labels.txt", "tokenizer/vocabulary.json"],
        ["config.pbtxt"],
        ["9/model.onnx"],
        ["10/model.onnx"],
        ["10/model.onnx.data"],
    ]


def test_what_belongs_to_a_model(tmp_path):
    write(tmp_path, {"1/model.py": 1, "1/__pycache__/model.pyc": 1, ".git/config": 1, "1/.x": 1})
    (tmp_path / "2").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "labels.txt").symlink_to(tmp_path / "1" / "model.py")
    found = local_files(tmp_path)
    assert {*found} == {"1/model.py", "2/.keep", "labels.txt"}
    assert found["2/.keep"] is None  # nothing but the folder
