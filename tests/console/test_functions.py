"""The page's pure functions, run where they are used: in a browser."""

import json
import math

import numpy as np
import pytest

from shoal.testing.server import running_server

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

EDGES = [50_000, 100_000, 250_000, 500_000, 1_000_000]


@pytest.fixture(scope="module")
def run(open_page, tmp_path_factory):
    """Runs JavaScript with a module of the page as `m` and an argument as `given`."""
    with running_server(tmp_path_factory.mktemp("none")) as running, open_page() as page:
        page.goto(f"http://{running.http_address}/")

        def runner(module, script, given=None):
            code = f"async (given) => {{ const m = await import('/console/{module}'); {script} }}"
            return page.evaluate(code, given)

        yield runner


# ---- curves


@pytest.mark.parametrize(
    ("after", "before", "counts"),
    [
        ([1, 3, 6], [0, 1, 3], [1, 1, 1]),
        ([1, 3, 6], None, [1, 2, 3]),
        ([1, 1, 1], [5, 7, 9], [1, 0, 0]),  # the model was loaded again in between
        ([4, 4, 4], [4, 4, 4], [0, 0, 0]),
    ],
)
def test_difference(run, after, before, counts):
    script = "return m.difference(given.after, given.before)"
    assert run("series.js", script, {"after": after, "before": before}) == counts


@pytest.mark.parametrize(
    ("counts", "share", "low", "high"),
    [
        ([0, 0, 0, 0, 0, 0], 0.5, None, None),
        ([10, 0, 0, 0, 0, 0], 0.5, 25_000, 25_000),  # the first bucket begins at 0
        ([0, 0, 100, 0, 0, 0], 0.5, 150_000, 165_000),  # the middle of 100 to 250 µs, by ratio
        ([0, 50, 50, 0, 0, 0], 0.5, 100_000, 100_000),
        ([0, 99, 0, 0, 1, 0], 0.99, 100_000, 100_000),
        ([0, 98, 0, 0, 2, 0], 0.99, 500_000, 1_000_000),
        ([0, 0, 0, 0, 0, 7], 0.9, 1_000_000, 1_000_000),  # beyond the last edge: at least that
    ],
)
def test_percentile(run, counts, share, low, high):
    script = "return m.percentile(given.edges, given.counts, given.share)"
    found = run("series.js", script, {"edges": EDGES, "counts": counts, "share": share})
    if low is None:
        assert found is None
    else:
        assert low * 0.999 <= found <= high * 1.001


def test_percentiles_of_real_durations(run):
    """Within a bucket's width of the truth, which is all that three buckets per decade can give."""
    edges = [50e3, 100e3, 250e3, 500e3, 1e6, 2.5e6, 5e6, 10e6, 25e6, 50e6, 100e6, 250e6]
    values = np.random.default_rng(3).lognormal(math.log(4e6), 0.7, 20_000)
    counts = np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1).tolist()
    for share in (0.5, 0.9, 0.99):
        given = {"edges": edges, "counts": counts, "share": share}
        found = run(
            "series.js", "return m.percentile(given.edges, given.counts, given.share)", given
        )
        assert found == pytest.approx(np.quantile(values, share), rel=0.25)


def test_a_point_between_two_looks(run):
    def look(success, rows, executions, histogram):
        return {
            "pending": 3,
            "success": success,
            "success_ns": success * 2_000_000,
            "failures": {"REJECTED": success // 10, "OTHER": 0},
            "rows": rows,
            "executions": executions,
            "queue_ns": success * 500_000,
            "input_ns": 0,
            "infer_ns": success * 1_000_000,
            "output_ns": 0,
            "cache_hits": 0,
            "histograms": {"request": histogram, "batch": [0, 0]},
        }

    script = """
      const [before, after] = given.looks.map((look) => m.total([look]));
      return m.between(before, after, 2, given.edges);
    """
    looks = [
        look(100, 200, 50, [0, 0, 0, 0, 100, 100]),
        look(300, 800, 150, [0, 0, 0, 0, 300, 300]),
    ]
    point = run("series.js", script, {"edges": EDGES, "looks": looks})
    assert (point["rate"], point["failRate"], point["pending"]) == (100, 10, 3)
    assert (point["rows"], point["queue"], point["infer"]) == (6, 0.5, 1)
    assert 0.5 <= point["p50"] <= point["p99"] <= 1


def test_a_history_forgets_and_begins_anew(run):
    script = """
      const history = new m.History(3);
      const sum = (success) => ({ ...m.total([]), success });
      for (let at = 1; at <= 6; at += 1) history.add(sum(at * 10), at * 1e9, at * 1000, [1]);
      const rates = history.points.map((point) => point.rate);
      history.add(sum(4), 7e9, 7000, [1]);          // loaded again
      const reloaded = history.points.at(-1).rate;
      history.gap(8000);                            // nobody looked for a while
      history.add(sum(100), 60e9, 60000, [1]);
      return { rates, reloaded, gap: history.points.at(-1), recent: history.recent };
    """
    found = run("series.js", script)
    assert found == {"rates": [10, 10, 10], "reloaded": 4, "gap": {"ms": 8000}, "recent": None}


@pytest.mark.parametrize(
    ("most", "marks"),
    [(0, [0, 1]), (1, [0, 0.25, 0.5, 0.75, 1]), (7, [0, 2, 4, 6, 8]), (430, [0, 200, 400, 600])],
)
def test_ticks(run, most, marks):
    assert run("charts.js", "return m.ticks(given)", most) == marks


@pytest.mark.parametrize(
    ("least", "most", "marks"),
    [
        (0, 0, [0.1, 1]),
        (0.3, 0.9, [0.2, 0.5, 1]),
        (0.2, 40, [0.1, 1, 10, 100]),
        (3, 30, [2, 5, 10, 20, 50]),
        (5, 5, [2, 5, 10]),
    ],
)
def test_ticks_of_ratios(run, least, most, marks):
    assert run("charts.js", "return m.ratioTicks(given[0], given[1])", [least, most]) == marks


# ---- words


def test_figures_are_short(run):
    script = "return given.map(([name, value]) => m[name](value))"
    given = [
        ["count", 0],
        ["count", 0.123],
        ["count", 12345],
        ["count", None],
        ["duration", 0.0421],
        ["duration", 1.26],
        ["duration", 2400],
        ["bytes", 1536],
        ["bytes", 10 * 2**30],
        ["percent", 0.034],
    ]
    assert run("format.js", script, given) == [
        *(
            "0",
            "0.12",
            "12.3k",
            "\N{EN DASH}",
            "42 µs",
            "1.3 ms",
            "2.4 s",
            "1.5 KiB",
            "10 GiB",
            "3.4 %",
        ),
    ]


# ---- tensors


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
def test_floats_are_encoded_as_numpy_does(run, datatype):
    values = np.random.default_rng(1).normal(0, 50, 200).tolist()
    values += [0.0, -0.0, 1e-8, 6e-8, 65504.0, 65519.0, 65520.0, 1e30, -1e30, 1 / 3]
    sent = run("tensors.js", "return [...m.encode(given.v, given.t)]", {"v": values, "t": datatype})
    if datatype == "BF16":
        ml_dtypes = pytest.importorskip("ml_dtypes")
        expected = np.array(values, np.float32).astype(ml_dtypes.bfloat16)
    else:
        kind = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}[datatype]
        with np.errstate(over="ignore"):
            source = np.array(values, np.float32 if datatype == "FP16" else np.float64)
            expected = source.astype(kind)
    assert bytes(sent) == expected.tobytes()
    script = "return m.decode(Uint8Array.from(given.b), given.t).map(String)"
    back = run("tensors.js", script, {"b": sent, "t": datatype})
    assert [float(text) for text in back] == pytest.approx(expected.astype(np.float64).tolist())


@pytest.mark.parametrize(
    ("datatype", "text", "values"),
    [
        ("INT64", "9223372036854775807 -1", ["9223372036854775807", "-1"]),
        ("UINT64", "[18446744073709551615, 0]", ["18446744073709551615", "0"]),
        ("INT8", "-128,127", ["-128", "127"]),
        ("BOOL", "true 0", ["true", "false"]),
        ("FP32", "nan, -inf", ["NaN", "-Infinity"]),
        ("BYTES", "one, two\nthree", ["one, two", "three"]),
    ],
)
def test_what_is_typed_is_what_arrives(run, datatype, text, values):
    script = """
      const typed = m.parseValues(given.text, given.type, [2], "x");
      return [typed.map(String), m.decode(m.encode(typed, given.type), given.type).map(String)];
    """
    typed, back = run("tensors.js", script, {"text": text, "type": datatype})
    assert typed == back == values


@pytest.mark.parametrize(
    ("datatype", "text", "shape", "words"),
    [
        ("INT8", "128 0", [2], "x is INT8, from -128 to 127; 128 does not fit."),
        ("INT32", "1.5 0", [2], "x is INT32; “1.5” is not a whole number."),
        ("FP32", "1 two", [2], "x is FP32; “two” is not a number."),
        ("BOOL", "yes no", [2], "x is BOOL: write true or false; found “yes”."),
        ("FP32", "1 2 3", [2, 2], "x needs 4 values for the shape [2, 2]; found 3."),
    ],
)
def test_wrong_values_are_reported_in_a_sentence(run, datatype, text, shape, words):
    script = """
      try { m.parseValues(given.text, given.type, given.shape, "x"); return "fine"; }
      catch (error) { return error.message; }
    """
    assert run("tensors.js", script, {"text": text, "type": datatype, "shape": shape}) == words


@pytest.mark.parametrize(
    ("text", "dims", "found"),
    [
        ("1, 16", [-1, 16], [1, 16]),
        ("[2 16]", [-1, 16], [2, 16]),
        ("", [], []),
        ("1, 17", [-1, 16], "Dimension 2 of x must be 16; found 17."),
        ("16", [-1, 16], "The shape of x must have 2 dimensions, such as 1, 16; found 1."),
        ("1, -2", [-1, -1], "The shape of x must be whole numbers, such as 1, 1; found “-2”."),
    ],
)
def test_shapes(run, text, dims, found):
    script = """
      try { return m.parseShape(given.text, given.dims, "x"); }
      catch (error) { return error.message; }
    """
    assert run("tensors.js", script, {"text": text, "dims": dims}) == found


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ({"name": "image", "datatype": "FP32", "shape": [-1, 3, -1, -1]}, [1, 3, 224, 224]),
        ({"name": "image", "datatype": "UINT8", "shape": [-1, -1, -1, 3]}, [1, 224, 224, 3]),
        ({"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]}, [1, 16]),
        ({"name": "text", "datatype": "BYTES", "shape": [-1, -1]}, [1, 1]),
        ({"name": "x", "datatype": "FP32", "shape": [-1]}, [4]),
        ({"name": "x", "datatype": "FP32", "shape": [-1], "batched": True}, [1]),
        ({"name": "x", "datatype": "FP32", "shape": [16]}, [16]),
    ],
)
def test_free_dimensions_get_a_sensible_size(run, spec, shape):
    assert run("tensors.js", "return m.defaultShape(given)", spec) == shape


# ---- answers


def test_labels_and_distributions(run):
    script = (
        "return [m.parseClass('0.5:3:a:b'), m.isDistribution([0.2, 0.8]), m.isDistribution([2, 1])]"
    )
    assert run("draw.js", script) == [{"score": 0.5, "index": 3, "label": "a:b"}, True, False]


def test_an_answer_is_marked_by_pythons_offsets(run):
    text = "🐟 and 🐠 swim"
    start = text.index("🐠")
    script = "const p = m.marked(given.t, given.s, given.e); return [p.textContent, p.querySelector('mark').textContent]"
    given = {"t": text, "s": start, "e": start + 1}
    assert run("draw.js", script, given) == [text, "🐠"]


def test_events_may_come_in_pieces(run):
    script = """
      const pieces = ["data: {\\"a\\": 1}\\n", "\\ndata: {\\"b\\"", ": \\"é\\"}\\r\\n\\r\\n", ": note\\n\\n", "data: {}\\n\\n"];
      const encoder = new TextEncoder();
      const body = new ReadableStream({
        start(controller) {
          for (const piece of pieces) for (const byte of encoder.encode(piece)) controller.enqueue(Uint8Array.of(byte));
          controller.close();
        },
      });
      const found = [];
      for await (const event of m.events(new Response(body))) found.push(event);
      return found;
    """
    assert run("api.js", script) == [{"a": 1}, {"b": "é"}, {}]


def test_addresses(run):
    script = "return given.map((hash) => { const { page, name, tab, version } = m.route(hash); return [page, name, tab, version].filter((each) => each !== undefined); })"
    given = ["", "#/", "#/errors", "#/models/a%2Fb%3C/try?version=3", "#/models/%zz", "#/models"]
    assert run("app.js", script, given) == [
        ["overview"],
        ["overview"],
        ["errors"],
        ["model", "a/b<", "try", "3"],
        ["model", "%zz", "", ""],
        ["overview"],
    ]


def test_short_lists_are_on_one_line(run):
    given = {"dims": [-1, 3], "names": ["a, b", "[c]"], "none": [], "inner": [{"x": [1]}]}
    text = run("config.js", "return m.written(given)", given)
    assert json.loads(text) == given
    assert '"dims": [-1, 3],' in text
    assert '"x": [1]' in text


def test_a_config_without_its_defaults(run):
    config = {
        "name": "eel",
        "max_batch_size": 8,
        "dynamic_batching": {"preferred_batch_size": [], "preserve_ordering": False},
        "input": [{"name": "x", "format": "FORMAT_NONE", "dims": [-1], "optional": False}],
        "parameters": {},
    }
    assert run("config.js", "return m.withoutDefaults(given)", config) == {
        "name": "eel",
        "max_batch_size": 8,
        "dynamic_batching": {},
        "input": [{"name": "x", "dims": [-1]}],
    }
