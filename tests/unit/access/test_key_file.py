"""The key file: what it may contain, and how `shoal key` changes it."""

from __future__ import annotations

import json
import stat

import pytest

from shoal.access.caller import APIS, DEFAULT_APIS
from shoal.access.entry import KeyEntry, digest_of, new_key
from shoal.access.files import KeyFiles
from shoal.access.key_file import add_key, permission_problem, read_keys, remove_key
from shoal.cli.main import main
from shoal.errors import AlreadyExists, InvalidArgument, NotFound, Unauthenticated

DIGEST = "0" * 64
OTHER = "1" * 64


def written(tmp_path, *lines):
    path = tmp_path / "keys.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_comments_defaults_and_all_fields(tmp_path):
    full = {
        "name": "full",
        "sha256": OTHER,
        "apis": ["*"],
        "models": ["resnet*", "bert"],
        "upload": True,
        "requests_per_second": 100,
        "burst": 200,
        "bytes_per_second": 1e6,
        "requests_in_flight": 8,
        "expires": "2099-01-31",
    }
    path = written(
        tmp_path, "# who", "", f'{{"name": "a", "sha256": "{DIGEST}"}}', json.dumps(full)
    )
    plain, rich = read_keys(path)
    assert plain == KeyEntry("a", DIGEST)
    assert plain.apis == DEFAULT_APIS
    assert plain.models == ("*",)
    assert (rich.burst, rich.requests_in_flight, rich.upload) == (200.0, 8, True)
    assert rich.expires_at == 4073500800.0
    assert KeyEntry.read(rich.line()) == rich


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not a JSON object: Expecting property name"),
        ("[]", "not a JSON object with the fields of a key"),
        ("{}", "'name' must be 1 to 64 letters"),
        ('{"name": "a b"}', "'name' must be 1 to 64 letters"),
        ('{"name": "a", "name": "b"}', "a field is given twice"),
        ('{"name": "a", "modles": ["x"]}', "unknown field 'modles'; a key has name, sha256"),
        ('{"name": "a", "sha256": "abc"}', "'sha256' must be the SHA-256"),
        ('{"name": "a", "apis": ["infer"]}', "'apis' has no kind of request 'infer'; use health"),
        ('{"name": "a", "apis": "inference"}', "'apis' must be a list of texts"),
        ('{"name": "a", "models": [1]}', "'models' must be a list of texts"),
        ('{"name": "a", "upload": 1}', "'upload' must be true or false"),
        ('{"name": "a", "requests_per_second": 0}', "'requests_per_second' must be a number above"),
        ('{"name": "a", "requests_per_second": NaN}', "'requests_per_second' must be a number"),
        ('{"name": "a", "bytes_per_second": true}', "'bytes_per_second' must be a number above 0"),
        ('{"name": "a", "burst": 5}', "'burst' needs 'requests_per_second'"),
        ('{"name": "a", "requests_in_flight": 1.5}', "'requests_in_flight' must be a whole number"),
        ('{"name": "a", "expires": "soon"}', "'expires' must be a date or a moment"),
        ('{"name": "a", "expires": 5}', "'expires' must be a date or a moment"),
        ("[" * 100_000, "nested too deeply"),
        (f'{{"name": "first", "sha256": "{OTHER}"}}', "the same 'name' as in line 1"),
        (f'{{"name": "a", "sha256": "{DIGEST}"}}', "the same 'sha256' as in line 1"),
    ],
)
def test_a_mistake_is_reported_with_its_line(tmp_path, line, reason):
    path = written(tmp_path, f'{{"name": "first", "sha256": "{DIGEST}"}}', "", line)
    with pytest.raises(InvalidArgument) as caught:
        read_keys(path)
    assert caught.value.message.startswith(f"{path}, line 3: ")
    assert reason in caught.value.message
    assert DIGEST not in caught.value.message


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidArgument, match=r"cannot read .*: No such file"):
        read_keys(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match="not a text in UTF-8"):
        read_keys(tmp_path / "binary")


def test_permissions(tmp_path):
    path = written(tmp_path)
    for mode, words in ((0o600, ""), (0o640, ""), (0o644, "can read"), (0o662, "can change")):
        path.chmod(mode)
        problem = permission_problem(path)
        assert words in problem
        assert bool(problem) is bool(words)


def test_adding_and_removing_leaves_the_rest_as_it_is(tmp_path):
    path = tmp_path / "keys.jsonl"
    add_key(path, KeyEntry("a", DIGEST))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text(f"# comment\n{path.read_text().rstrip()}")  # without a line end
    add_key(path, KeyEntry("b", OTHER, models=("x",)))
    assert [entry.name for entry in read_keys(path)] == ["a", "b"]
    with pytest.raises(AlreadyExists, match="has a key 'a' already"):
        add_key(path, KeyEntry("a", "2" * 64))
    path.chmod(0o640)
    remove_key(path, "a")
    lines = path.read_text().splitlines()
    assert lines[0] == "# comment"
    assert [entry.name for entry in read_keys(path)] == ["b"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    with pytest.raises(NotFound, match="has no key 'a'"):
        remove_key(path, "a")


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["key", "new", "app", "--models", "r*, bert", "--requests-per-second", "5"]) == 0
    key, told = capsys.readouterr()
    key = key.strip()
    assert "stored nowhere" in told
    content = (tmp_path / "api-keys.jsonl").read_text()
    assert key not in content
    assert digest_of(key.encode()).hex() in content
    assert main(["key", "new", "role", "--no-key", "--apis", "*", "--expires", "2099-01-01"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["key", "list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[1].split() == [
        "app",
        ",".join(DEFAULT_APIS),
        "r*,bert",
        "5",
        "requests/s",
        "never",
    ]
    assert listed[2].startswith("role (for tokens)  *")
    assert main(["key", "remove", "app"]) == 0
    assert [entry.name for entry in read_keys(tmp_path / "api-keys.jsonl")] == ["role"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["make"], "unknown action 'make'; write shoal key new, list or remove"),
        (["new"], "the following arguments are required: name"),
        (["new", "a b"], "'name' must be 1 to 64 letters"),
        (["new", "a", "--apis", "infer"], "'apis' has no kind of request 'infer'"),
        (["new", "a", "--expires", "2001-01-01"], "--expires=2001-01-01 is in the past"),
        (["new", "a", "--requests-per-second", "0"], "expected a number above 0, found '0'"),
        (["list", "--file", "missing"], "cannot read missing: No such file"),
        (["remove", "a", "--file", "missing"], "cannot read missing: No such file"),
    ],
)
def test_mistakes_of_the_command(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(["key", *words]) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_help_names_every_kind():
    from shoal.cli.key import HELP

    shown = " ".join(HELP.split())
    assert all(api in shown for api in APIS)
    assert ",".join(DEFAULT_APIS) in shown


def test_a_changed_file_is_read_again_and_a_broken_one_is_not_used(tmp_path, caplog):
    first, second = new_key(), new_key()
    path = tmp_path / "keys.jsonl"
    add_key(path, KeyEntry("first", digest_of(first.encode()).hex()))
    files = KeyFiles(str(path), None)
    access = files.access
    caller = access.identify(first.encode(), None)
    actions = {}
    files.watch(lambda name, action, paths: actions.update({name: (action, paths)}), at_once)
    ((reload, paths),) = actions.values()
    assert paths == [str(path)]

    reload()
    assert access.identify(first.encode(), None) is caller
    path.write_text(f"{path.read_text()}{{broken\n")
    with pytest.raises(InvalidArgument, match="line 2: not a JSON object"):
        reload()
    assert access.identify(first.encode(), None) is caller
    path.unlink()
    with pytest.raises(InvalidArgument, match="No such file"):
        reload()
    assert access.identify(first.encode(), None) is caller

    add_key(path, KeyEntry("second", digest_of(second.encode()).hex()))
    reload()
    assert access.identify(second.encode(), None).name == "second"
    assert not caller.admit(1, 1)
    with pytest.raises(Unauthenticated, match="does not know the key"):
        access.identify(first.encode(), None)
    assert first not in caplog.text
    assert digest_of(first.encode()).hex() not in caplog.text


def at_once(work):
    work()


def test_start_up_warns_about_the_permissions(tmp_path, caplog):
    path = written(tmp_path, f'{{"name": "a", "sha256": "{DIGEST}"}}')
    path.chmod(0o644)
    KeyFiles(str(path), None)
    assert "all users can read" in caplog.text
