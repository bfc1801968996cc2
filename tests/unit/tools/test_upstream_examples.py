"""tools/upstream_examples.py: what it reads from a clone, leaves out and writes."""

from __future__ import annotations

import importlib
import shlex
import subprocess
from contextlib import nullcontext

import pytest

PAGE = """# A model
Write `config.pbtxt`:
```
name: "other"
```
```pbtxt
name: "wanted"
```
    curl -X POST localhost:8000/v2/models/wanted/infer -d '{}'
"""


@pytest.fixture(scope="module")
def script(tool):
    return tool("upstream_examples")


@pytest.fixture(scope="module")
def example(script):
    return importlib.import_module("upstream.example")


@pytest.fixture(scope="module")
def runner(script):
    return importlib.import_module("upstream.run")


@pytest.fixture(scope="module")
def table(script):
    return importlib.import_module("upstream.table")


@pytest.fixture(scope="module", params=["bare", "with a work tree"])
def clone(request, script, tmp_path_factory):
    folder = tmp_path_factory.mktemp("upstream")
    work_tree = folder / "original"
    files = {"README.md": PAGE, "add/client.py": "send('in__0')\n", "add/deep/labels.txt": "cat\n"}
    for name, text in files.items():
        (work_tree / name).parent.mkdir(parents=True, exist_ok=True)
        (work_tree / name).write_text(text)
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    git = ["git", "-C", str(work_tree), *identity]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "all"], check=True)
    (work_tree / "add" / "client.py").write_text("not committed")
    if request.param == "bare":
        bare = folder / "bare"
        subprocess.run(["git", "clone", "--quiet", "--bare", work_tree, bare], check=True)
        return script.Clone(bare)
    return script.Clone(work_tree)


def test_an_example_is_laid_out_from_what_is_committed(clone, example, runner, tmp_path):
    entry = example.Example(
        name="made_up/add",
        clone="made_up",
        files={
            "models/add/1": "add",
            "models/add/config.pbtxt": example.Block("README.md", '"wanted"'),
            "client.py": "add/client.py",
            "edited.py": example.Edited("add/client.py", {"in__0": "x"}),
            "old.txt": example.OtherClone("other", "add/deep/labels.txt", "HEAD"),
        },
        clients=(),
        stand_ins=(example.StandIn("notes", lambda place: (place.root / "notes").touch()),),
    )
    place = example.Place(tmp_path / "add")
    runner.lay_out(entry, {"made_up": clone, "other": clone}, place)
    written = {
        str(path.relative_to(place.root)): path.read_text()
        for path in place.root.rglob("*")
        if path.is_file()
    }
    assert written == {
        "models/add/1/client.py": "send('in__0')\n",
        "models/add/1/deep/labels.txt": "cat\n",
        "models/add/config.pbtxt": 'name: "wanted"\n',
        "client.py": "send('in__0')\n",
        "edited.py": "send('x')\n",
        "old.txt": "cat\n",
        "notes": "",
    }


def test_a_command_is_read_from_a_page(clone):
    line = clone.line("README.md", "curl -X POST localhost:8000/v2/models/wanted")
    assert line == "curl -X POST localhost:8000/v2/models/wanted/infer -d '{}'"


def test_what_the_clone_does_not_have_is_named(clone, example, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no sub/client.py"):
        clone.copy("sub/client.py", tmp_path / "x")
    with pytest.raises(LookupError, match=r"no block of README.md"):
        clone.text(example.Block("README.md", "nowhere"))
    with pytest.raises(LookupError, match=r"does not contain 'out__0'"):
        clone.text(example.Edited("add/client.py", {"out__0": "y"}))
    with pytest.raises(LookupError, match=r"no line of README.md"):
        clone.line("README.md", "wget")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"needs": ("json", "no_such_module")}, "needs no_such_module"),
        ({"needs": ("numpy>1", "numpy<1")}, "needs numpy<1"),
        ({"needs": ("git", "no-such-program")}, "needs no-such-program"),
        ({"clone": "tutorials"}, "needs a clone of tutorials"),
        ({"left_out": "needs TensorRT"}, "needs TensorRT"),
    ],
)
def test_an_example_is_left_out_for_what_is_missing(example, runner, tmp_path, changes, reason):
    given = {"name": "a/b", "clone": "a", "files": {}, "clients": (), **changes}
    entry = example.Example(**given)
    assert runner.why_left_out(entry, {"a": None}) == reason
    if reason:
        result = runner.run(entry, {"a": None}, tmp_path)
        assert (result.outcome, result.remark) == ("left out", reason)
        assert not list(tmp_path.iterdir())


def test_an_example_needs_every_clone_that_it_reads(example, runner):
    files = {"backends/b": example.OtherClone("b", "src", "1234567")}
    entry = example.Example("a/b", "a", files, ())
    assert runner.why_left_out(entry, {"a": None}) == "needs a clone of b"
    assert runner.why_left_out(entry, {"a": None, "b": None}) == ""


WAITS = "import threading; threading.Event().wait()"


@pytest.mark.parametrize(
    ("program", "endless", "reason"),
    [
        ("print('12/12')", False, ""),
        (f"print('12/12', flush=True); {WAITS}", True, ""),
        ("print('11/12')", False, r"did not print \['12/12'\]"),
        ("print('12/12'); exit(3)", False, "exited with 3"),
        ("exit(3)", True, "exited with 3"),
        ("print('11/12')", True, r"did not print \['12/12'\]"),
    ],
)
def test_a_client_is_judged_by_what_it_prints(example, runner, tmp_path, program, endless, reason):
    command = shlex.join(("python", "-c", program))
    client = example.Client(f"time {command}", ("12/12",), endless=endless)
    failure = pytest.raises(runner.Unsuccessful, match=reason) if reason else nullcontext()
    with failure:
        runner.run_client(client, None, example.Place(tmp_path))
    assert command in (tmp_path / "clients.log").read_text()


def test_stand_ins_need_their_modules_too(example, runner):
    stand_in = example.StandIn("weights", print, ("no_such_module",))
    entry = example.Example("a/b", "a", {}, (), stand_ins=(stand_in,), remark="On the CPU")
    assert runner.why_left_out(entry, {"a": None}) == "needs no_such_module"
    assert entry.remarks() == "Stand-in: weights. On the CPU"


def test_rows_are_written_between_the_markers_and_others_stay(runner, table, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Results\n{table.BEGIN}old\n{table.END}The end.\n")

    def write(commits, *results):
        table.write_markdown(page, results, ["a/one", "a/two", "b/three"], commits)

    write(
        {"a": "1234567", "b": "abcdef0"},
        runner.Result("b/three", "passed", 1, ""),
        runner.Result("a/two", "failed", 4, ""),
        runner.Result("no/longer", "passed", 4, ""),
    )
    write(
        {"a": "7654321"},
        runner.Result("a/two", "left out", 0, "needs x | y"),
        runner.Result("a/one", "passed", 2.4, "Stand-in: weights"),
    )
    assert page.read_text().splitlines() == [
        "# Results",
        table.BEGIN.strip(),
        "",
        "2 passed, 0 failed, 1 left out (a at 7654321, b at abcdef0).",
        "",
        "| Example | Result | Seconds | Remark |",
        "| --- | --- | --- | --- |",
        "| a/one | passed | 2 | Stand-in: weights |",
        "| a/two | left out |  | needs x / y |",
        "| b/three | passed | 1 |  |",
        "",
        table.END.strip(),
        "The end.",
    ]
    page.write_text("# No markers\n")
    with pytest.raises(SystemExit, match="lacks the lines"):
        write({})


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], ["a/one", "a/one/deep", "b/two"]),
        (["one"], ["a/one", "a/one/deep"]),
        (["a/one/deep", "b"], ["a/one/deep", "b/two"]),
        (["on"], []),
    ],
)
def test_examples_are_chosen_by_parts_of_their_names(example, script, names, found):
    entries = [example.Example(name, "a", {}, ()) for name in ("a/one", "a/one/deep", "b/two")]
    assert [entry.name for entry in script.chosen(entries, names)] == found


def test_names_of_examples_are_unique(script):
    names = [entry.name for module in script.TABLES for entry in module.EXAMPLES]
    assert len(names) == len(set(names))
