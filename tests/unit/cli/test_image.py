"""The words of `shoal image`: what is understood, and what is said about the rest."""

import subprocess
import sys

import pytest

from shoal.cli.image import _parse, help_text
from shoal.cli.main import main
from shoal.image.pixels import SCALINGS


def parsed(line):
    return _parse(line.split())


def test_flags_as_the_original_has_them():
    options = parsed(
        "-m resnet -x 3 -b 4 -c 5 -s vgg -u host:1 -i gRPC --async -v -H a:b a.jpg b.jpg"
    )
    assert (options.model_name, options.model_version) == ("resnet", "3")
    assert (options.batch_size, options.classes, options.scaling) == (4, 5, "VGG")
    assert (options.url, options.protocol, options.at_once) == ("host:1", "grpc", True)
    assert options.header == [("a", "b")]
    assert options.images == ["a.jpg", "b.jpg"]


def test_images_may_stand_anywhere():
    assert parsed("a.jpg -m resnet b.jpg -c 2 c.jpg").images == ["a.jpg", "b.jpg", "c.jpg"]


@pytest.mark.parametrize(
    ("words", "protocol"),
    [("", "http"), ("-u grpc://h:1", "grpc"), ("-u GRPCS://h", "grpc"), ("-u http://h", "http")],
)
def test_the_address_may_name_the_protocol(words, protocol):
    assert parsed(f"-m m {words} x").protocol == protocol


@pytest.mark.parametrize(("text", "size"), [("224x96", (224, 96)), ("64", (64, 64))])
def test_sizes(text, size):
    assert _parse(["-m", "m", "--size", text, "x"]).size == size


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("a.jpg", "the following arguments are required: -m/--model-name"),
        ("-m m", "name an image or a folder of images: shoal image -m MODEL mug.jpg"),
        ("-m m -b 0 x", "expected a whole number of at least 1, found '0'"),
        ("-m m -c many x", "expected a whole number of at least 1, found 'many'"),
        ("-m m -s NOON x", "invalid choice: 'NOON'"),
        ("-m m -i ftp x", "invalid choice: 'ftp'"),
        ("-m m --size big x", "expected HEIGHTxWIDTH, such as 224x224, found 'big'"),
        ("-m m -H nothing x", "expected NAME:VALUE, found 'nothing'"),
        ("-m m --nonsense x", "unrecognized arguments: --nonsense"),
        ("-m m --streaming x", "--streaming needs gRPC; add -i grpc"),
        ("-m m -i grpc --async --streaming x", "choose one of them"),
        ("-m m nowhere.jpg", "there is no file or folder 'nowhere.jpg'"),
    ],
)
def test_mistakes(words, text, capsys):
    assert main(["image", *words.split()]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert text in captured.err
    assert captured.err.count("\n") == 1


def test_the_help(capsys):
    assert main(["image", "--help"]) == 0
    text = capsys.readouterr().out
    assert text == help_text()
    assert text.startswith("usage: shoal image -m MODEL")
    assert all(len(line) <= 100 for line in text.splitlines())
    for name in SCALINGS:
        assert f" {name} " in text


def test_pillow_waits_for_the_first_image():
    code = "import sys, shoal.cli.image, shoal.image.pixels; sys.exit('PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
