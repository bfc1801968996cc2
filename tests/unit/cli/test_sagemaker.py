"""`shoal sagemaker`: the command line that the environment of the container stands for."""

from __future__ import annotations

import pytest

from shoal.cli import arguments, main, sagemaker
from shoal.config.options import OptionError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "resnet" / "1").mkdir(parents=True)
    return tmp_path


def options(environ, folder):
    words, variables = sagemaker.command_line(environ, folder)
    return arguments.parse(words), variables


def test_one_model(folder, capsys):
    parsed, variables = options({}, folder)
    assert parsed.model_repository == (str(folder),)
    assert parsed.load_model == ("resnet",)
    assert parsed.model_control_mode == "explicit"
    assert parsed.allow_sagemaker
    assert parsed.model_namespacing
    others = (parsed.allow_http, parsed.allow_grpc, parsed.allow_metrics)
    assert others == (False, False, False)
    assert variables == {
        "SAGEMAKER_TRITON_PING_MODE": "ready",
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "resnet",
    }
    assert "No SAGEMAKER_TRITON_DEFAULT_MODEL_NAME provided" in capsys.readouterr().err


def test_many_models(tmp_path):
    parsed, variables = options({"SAGEMAKER_MULTI_MODEL": "true"}, tmp_path)
    assert parsed.load_model == ()
    assert variables == {"SAGEMAKER_TRITON_PING_MODE": "live"}


def test_variables(folder):
    parsed, variables = options(
        {
            "SAGEMAKER_BIND_TO_PORT": "9000",
            "SAGEMAKER_SAFE_PORT_RANGE": "8001-9999",
            "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "resnet",
            "SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING": "false",
            "SAGEMAKER_TRITON_OVERRIDE_PING_MODE": "live",
            "SAGEMAKER_TRITON_ALLOW_GRPC": "true",
            "SAGEMAKER_TRITON_GRPC_PORT": "9001",
            "SAGEMAKER_TRITON_ALLOW_METRICS": "1",
            "SAGEMAKER_TRITON_METRICS_PORT": "9002",
            "SAGEMAKER_TRITON_LOG_VERBOSE": "true",
            "SAGEMAKER_TRITON_LOG_INFO": "false",
            "SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE": "1024",
            "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--drain-secs=5  --id there",
        },
        folder,
    )
    assert (parsed.sagemaker_port, parsed.grpc_port, parsed.metrics_port) == (9000, 9001, 9002)
    assert parsed.allow_grpc
    assert parsed.allow_metrics
    assert not parsed.model_namespacing
    assert (parsed.log_verbose, parsed.log_info) == (1, False)
    assert parsed.backend_settings() == {"python": {"shm-default-byte-size": "1024"}}
    assert (parsed.drain_secs, parsed.id) == (5.0, "there")
    assert variables["SAGEMAKER_TRITON_PING_MODE"] == "live"


def test_what_cannot_be_served(folder):
    named = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "bert"}
    text = "Directory with provided SAGEMAKER_TRITON_DEFAULT_MODEL_NAME bert does not exist"
    with pytest.raises(OptionError, match=text):
        sagemaker.command_line(named, folder)
    (folder / "bert").mkdir()
    with pytest.raises(OptionError, match=r"More than 1 model directory .*\(bert, resnet\)"):
        sagemaker.command_line({}, folder)
    (folder / "config.pbtxt").touch()
    with pytest.raises(OptionError, match="Incorrect directory structure"):
        sagemaker.command_line(named, folder)
    with pytest.raises(OptionError, match="Invalid SAGEMAKER_TRITON_INFERENCE_TYPE 'guess'"):
        sagemaker.command_line({"SAGEMAKER_TRITON_INFERENCE_TYPE": "guess"}, folder)
    with pytest.raises(OptionError, match="No model found in model repository"):
        sagemaker.command_line({}, folder / "bert")


def test_the_command(capsys, monkeypatch, tmp_path):
    assert main.main(["sagemaker", "--help"]) == 0
    assert "usage: shoal sagemaker [serve] [OPTION ...]" in capsys.readouterr().out
    monkeypatch.setattr(sagemaker, "MODEL_FOLDER", tmp_path)
    assert main.main(["sagemaker", "serve"]) == 1
    assert capsys.readouterr().err == f"ERROR: No model found in model repository {tmp_path}\n"
