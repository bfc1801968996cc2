"""What is a model, what is a repository, and what an exception says."""

from __future__ import annotations

import logging
import os

import pytest

from shoal.config import rules
from shoal.config.model import ModelConfig
from shoal.errors import ConfigError, Internal, NotFound
from shoal.repository.inspection import Inspection, Problem, problems_of
from shoal.repository.layout import is_model_folder, is_single_model
from shoal.repository.lifecycle import UnreadableModel
from shoal.repository.preparation import PreparationSettings

GOOD = 'backend: "identity" input { name: "a" data_type: TYPE_FP32 dims: [ 1 ] }'


@pytest.mark.parametrize(
    ("paths", "expected", "alone"),
    [
        ([], False, False),
        (["config.pbtxt"], True, True),
        (["1/model.onnx"], True, True),
        (["resnet/1/model.onnx"], False, False),
        (["resnet/config.pbtxt"], False, False),
        (["7/config.pbtxt"], False, False),  # a model called 7
        (["7/1/model.onnx"], False, False),
        (["7/config.pbtxt", "config.pbtxt"], True, False),
        (["resnet/1/model.onnx", "7/notes.txt"], True, False),
    ],
)
def test_is_model_folder(tmp_path, paths, expected, alone):
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert is_model_folder(tmp_path) == expected
    assert is_single_model(tmp_path) == alone


def test_problems_of_a_config_error():
    error = ConfigError("found 3", file="f", field="dims", fix="Write 4")
    assert problems_of(error, "place") == [Problem("found 3", "f", "dims", "Write 4")]
    assert problems_of(ConfigError("found 3"), "place") == [Problem("found 3", "place")]


def test_problems_of_other_exceptions():
    unreadable = UnreadableModel([1])
    unreadable.__cause__ = KeyError("x")
    assert problems_of(unreadable, "place") == [Problem("KeyError: 'x'", "place")]
    assert problems_of(Internal("no"), "place") == [Problem("no", "place")]


def test_all_faults_of_a_config():
    with pytest.raises(rules.InvalidConfig) as caught:
        rules.check(ModelConfig(name="m", backend="b", max_batch_size=-1), file="f")
    problems = problems_of(caught.value, "")
    assert len(problems) == len(
        list(rules.faults(ModelConfig("m", backend="b", max_batch_size=-1)))
    )
    assert problems[0].file == "f"
    assert problems[0].message in caught.value.message


def test_warnings_are_collected_and_not_logged(tmp_path, caplog):
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "no_version").mkdir()
    (folder / "config.pbtxt").write_text(GOOD)
    inspection = Inspection([tmp_path], PreparationSettings())
    with caplog.at_level(logging.WARNING):
        (report,) = inspection.reports(load=True)
    assert report.ok
    assert report.loaded
    assert report.warnings == [
        "'no_version' is not a version of model 'm' (versions are numbers like 1 or 42): skipped"
    ]
    assert not caplog.records


def test_a_pipe_in_place_of_the_config(tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    os.mkfifo(tmp_path / "m" / "config.pbtxt")  # to read it would never end
    (report,) = Inspection([tmp_path], PreparationSettings()).reports()
    assert report.problems[0].message == "this is not a file"


def test_one_name_twice(tmp_path):
    for repository in ("a", "b"):
        folder = tmp_path / repository / "m"
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(GOOD)
    inspection = Inspection([tmp_path / "a", tmp_path / "b"], PreparationSettings())
    (report,) = inspection.reports()
    assert "model appears in two or more repositories" in report.problems[0].message


def test_places_that_are_not_there(tmp_path):
    with pytest.raises(NotFound, match="does not exist"):
        Inspection([tmp_path / "missing"], PreparationSettings())
    file = tmp_path / "notes.md"
    file.touch()
    with pytest.raises(NotFound, match="is not a model file of a known kind"):
        Inspection([file], PreparationSettings())


TASK = """
backend: "identity" max_batch_size: 4
input { name: "image" data_type: TYPE_FP32 dims: [ 3, 8, 8 ] }
output { name: "scores" data_type: TYPE_FP32 dims: [ 192 ] }
parameters { key: "task" value { string_value: "image-classification" } }
"""


@pytest.mark.parametrize(
    ("config", "settings", "where", "fix"),
    [
        (TASK, '{"sise": 8}', ("task.json", "sise"), "Did you mean 'size'?"),
        (TASK, "[]", ("task.json", ""), 'Write {"top": 5}'),
        (
            TASK.replace("-classification", "-clasification"),
            "{}",
            ("config.pbtxt", "parameters['task']"),
            "Did you mean 'image-classification'?",
        ),
    ],
)
def test_tasks_and_their_settings(tmp_path, config, settings, where, fix):
    pytest.importorskip("PIL")
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    (folder / "task.json").write_text(settings)
    inspection = Inspection([tmp_path], PreparationSettings())
    (report,) = inspection.reports()
    inspection.close()
    (problem,) = report.problems
    assert (problem.file, problem.field) == where
    assert fix in problem.fix


def test_a_model_with_a_task_is_loaded_too(tmp_path):
    pytest.importorskip("PIL")
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(TASK)
    inspection = Inspection([tmp_path], PreparationSettings())
    (report,) = inspection.reports(load=True)
    inspection.close()
    assert report.ok, report.problems
    assert report.loaded
