"""Messages of errors, some of which quote what a client has sent."""

from shoal.errors import ConfigError, InvalidArgument, Unavailable, quoted


def test_a_very_long_message_keeps_its_beginning_and_end():
    error = InvalidArgument(f"no input '{'x' * 10_000_000}' in the model")
    assert len(error.message) < 8300
    assert error.message == str(error)
    assert error.message.startswith("no input 'xxx")
    assert error.message.endswith("xxx' in the model")
    assert "9991832 characters left out" in error.message


def test_prefixes_and_configs_are_bounded_too():
    assert len(Unavailable("no").prefixed("x" * 100_000).message) < 8300
    assert len(ConfigError("a" * 100_000, file="b" * 100_000, fix="c" * 100_000).message) < 8300


def test_other_messages_stay_as_they_are():
    assert InvalidArgument("x" * 8192).message == "x" * 8192


def test_a_quotation_has_200_characters():
    assert quoted("a" * 200) == "a" * 200
    assert quoted("a" * 201) == "a" * 200 + "…"


def test_names_of_files_that_are_not_utf_8():
    assert InvalidArgument("cannot read 'é\udcff'").message == "cannot read 'é\\udcff'"
