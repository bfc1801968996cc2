"""scikit-learn, XGBoost and LightGBM with real models: labels, probabilities, trust."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace

import numpy as np
import pytest

from shoal.backends.base import Placement
from shoal.config.model import ModelConfig, ModelInput, ModelOutput, ModelParameter
from shoal.errors import BackendFailure, ConfigError, InvalidArgument, Unsupported
from shoal.testing.server import running_server
from tests.support import tabular_models
from tests.support.repositories import add_model

ON_CPU = Placement("KIND_CPU")
FISH = np.array(["cod", "eel", "ray"])


def table(rows=90, features=3):
    """Rows whose first column says which of three classes they belong to."""
    made = np.random.default_rng(0).random((rows, features)) / 10
    labels = np.arange(rows) % 3
    made[:, 0] += labels
    return made, labels


def summary(tensors):
    return [(t.name, t.data_type, t.dims) for t in tensors]


def row(first, features=3, kind=np.float32):
    made = np.full((1, features), 0.05, kind)
    made[0, 0] = first + 0.05  # well inside its class
    return made


# --- scikit-learn ---


@pytest.fixture
def sklearn(loader):
    pytest.importorskip("sklearn")
    pytest.importorskip("skops")
    from shoal.backends.tabular.sklearn import SklearnBackend

    loader.backend = SklearnBackend()
    loader.save = lambda model, name="model.skops": tabular_models.save_sklearn(
        model, loader.version_folder / name
    )
    return loader


def test_a_classifier_with_names_for_its_classes(sklearn):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features, labels = table()
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(features, FISH[labels])
    sklearn.save(model)
    done = sklearn.complete()
    assert done.max_batch_size == 1024
    assert summary(done.input) == [("features", "TYPE_FP32", (3,))]
    assert summary(done.output) == [
        ("predict", "TYPE_STRING", (1,)),
        ("predict_proba", "TYPE_FP32", (3,)),
    ]
    executor = sklearn.load().executor(ON_CPU)
    rows = np.concatenate([row(0), row(2)])
    labels, odds = executor.run({"features": rows}, ["predict", "predict_proba"])
    assert labels.tolist() == [[b"cod"], [b"ray"]]
    assert odds.dtype == np.float32
    assert np.allclose(odds, model.predict_proba(rows), atol=1e-6)


@pytest.mark.parametrize(
    ("labels", "data_type", "expected"),
    [
        (np.array([7, 8, 9]), "TYPE_INT64", 9),
        (np.array([False, True, True]), "TYPE_BOOL", True),
        (np.array(["a", "b", "c"], dtype=object), "TYPE_STRING", b"c"),
        (np.array(["é", "ü", "ß"]), "TYPE_STRING", "ß".encode()),
    ],
)
def test_class_labels_of_every_kind(sklearn, labels, data_type, expected):
    from sklearn.tree import DecisionTreeClassifier

    features, numbers = table()
    sklearn.save(DecisionTreeClassifier().fit(features, labels[numbers]))
    assert sklearn.complete().output[0].data_type == data_type
    (answer,) = sklearn.load().executor(ON_CPU).run({"features": row(2)}, ["predict"])
    assert answer.tolist() == [[expected]]


def test_doubles_in_doubles_out(sklearn):
    from sklearn.linear_model import LinearRegression

    features, _ = table()
    model = LinearRegression().fit(features, features[:, 0] / 3)
    sklearn.save(model)
    config = ModelConfig(
        input=(ModelInput(name="x", data_type="TYPE_FP64", dims=(3,)),),
    )
    done = sklearn.complete(config)
    assert summary(done.output) == [("predict", "TYPE_FP64", (1,))]
    (answer,) = (
        sklearn.load(config).executor(ON_CPU).run({"x": row(0.7, kind=np.float64)}, ["predict"])
    )
    assert answer[0, 0] == model.predict(row(0.7, kind=np.float64))[0]


def test_several_targets(sklearn):
    from sklearn.linear_model import LinearRegression

    features, _ = table()
    sklearn.save(LinearRegression().fit(features, features[:, :2]))
    assert summary(sklearn.complete().output) == [("predict", "TYPE_FP32", (2,))]


def test_a_classifier_of_several_outputs_has_no_single_matrix_of_probabilities(sklearn):
    from sklearn.ensemble import RandomForestClassifier

    features, labels = table()
    both = np.stack([labels, labels % 2], axis=1)
    sklearn.save(RandomForestClassifier(3).fit(features, both))
    assert summary(sklearn.complete().output) == [("predict", "TYPE_INT64", (2,))]


def test_a_transformer(sklearn):
    from sklearn.preprocessing import StandardScaler

    features, _ = table()
    scaler = StandardScaler().fit(features)
    sklearn.save(scaler)
    assert summary(sklearn.complete().output) == [("transform", "TYPE_FP32", (3,))]
    (answer,) = sklearn.load().executor(ON_CPU).run({"features": row(1)}, ["transform"])
    assert np.allclose(answer, scaler.transform(row(1)), atol=1e-6)


def test_an_output_that_only_the_config_requests(sklearn):
    from sklearn.svm import LinearSVC

    features, labels = table()
    sklearn.save(LinearSVC().fit(features, FISH[labels]))
    assert [t.name for t in sklearn.complete().output] == ["predict"]
    config = ModelConfig(
        output=(ModelOutput(name="decision_function", data_type="TYPE_FP32", dims=(3,)),)
    )
    executor = sklearn.load(config).executor(ON_CPU)
    assert executor.run({"features": row(1)}, ["decision_function"])[0].shape == (1, 3)


def test_texts(sklearn):
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline

    texts = ["a wet fish", "fish in water", "a dry stone", "stone on stone"]
    model = make_pipeline(TfidfVectorizer(), MultinomialNB()).fit(texts, ["eel", "eel", "no", "no"])
    sklearn.save(model)
    done = sklearn.complete()
    assert summary(done.input) == [("features", "TYPE_STRING", (1,))]
    executor = sklearn.load().executor(ON_CPU)
    rows = np.array([[b"wet water"], [b"a stone"]], dtype=object)
    (answer,) = executor.run({"features": rows}, ["predict"])
    assert answer.tolist() == [[b"eel"], [b"no"]]
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        executor.run({"features": np.array([[b"\xff"]], dtype=object)}, ["predict"])


def test_categories_as_strings(sklearn):
    from sklearn.preprocessing import OneHotEncoder

    encoder = OneHotEncoder(sparse_output=True).fit(
        np.array([["a", "x"], ["b", "y"]], dtype=object)
    )
    sklearn.save(encoder)
    config = ModelConfig(
        input=(ModelInput(name="words", data_type="TYPE_STRING", dims=(2,)),),
        output=(ModelOutput(name="transform", data_type="TYPE_FP32", dims=(4,)),),
        max_batch_size=8,
    )
    executor = sklearn.load(config).executor(ON_CPU)
    (answer,) = executor.run({"words": np.array([[b"b", b"x"]], dtype=object)}, ["transform"])
    assert answer.tolist() == [[0, 1, 1, 0]]
    with pytest.raises(BackendFailure, match="ValueError: Found unknown categories"):
        executor.run({"words": np.array([[b"q", b"x"]], dtype=object)}, ["transform"])


def test_jobs_share_the_cores(sklearn):
    from sklearn.ensemble import RandomForestRegressor

    features, labels = table()
    sklearn.save(RandomForestRegressor(3, n_jobs=-1).fit(features, labels))
    places = [Placement("KIND_CPU", name=str(index)) for index in range(2)]
    assert sklearn.load(placements=places, cores=8).predictor.estimator.n_jobs == 4
    loaded = sklearn.load(placements=places, cores=8, parameters={"threads": "3"})
    assert loaded.predictor.estimator.n_jobs == 3


def test_a_file_without_an_estimator(sklearn):
    sklearn.save({"a": 1})
    with pytest.raises(InvalidArgument, match="holds a dict, which can neither predict"):
        sklearn.load()


class Stranger:
    """A type that scikit-learn does not know."""

    def predict(self, rows):
        return np.zeros(len(rows))


class Harmful:
    """A pickle that does something when it is loaded."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("name", ["model.joblib", "model.pkl"])
def test_a_pickle_is_refused_unless_the_operator_allows_it(sklearn, name):
    sklearn.save(tabular_models.step_tree(2.0), name)
    with pytest.raises(Unsupported) as raised:
        sklearn.complete()
    message = raised.value.message
    assert message.startswith(f"'m/1/{name}' is a pickle, and loading a pickle runs the code")
    assert "skops.io.dump" in message
    assert "--backend-config=sklearn,allow_pickle=true" in message
    allowed = sklearn.load(settings={"allow_pickle": "true"}).executor(ON_CPU)
    rows = np.array([[1, 0, 0, 0]], np.float32)
    assert allowed.run({"features": rows}, ["predict"])[0].tolist() == [[2.0]]


def test_a_pickle_cannot_allow_itself(sklearn, tmp_path):
    trap = tmp_path / "trap"
    file = sklearn.version_folder / "model.pkl"
    file.parent.mkdir(parents=True)
    file.write_bytes(pickle.dumps(Harmful(trap)))
    config = ModelConfig(parameters={"allow_pickle": ModelParameter("true")})
    with pytest.raises(Unsupported, match="is a pickle"):
        sklearn.complete(config)
    assert not trap.exists()


def test_a_pickle_that_cannot_be_loaded(sklearn):
    file = sklearn.version_folder / "model.pkl"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\x80\x04cno_such_module\nThing\n.")
    with pytest.raises(InvalidArgument, match=r"No module named 'no_such_module'.*same versions"):
        sklearn.complete(settings={"allow_pickle": "true"})


def test_types_of_others_are_refused_unless_the_operator_trusts_them(sklearn):
    sklearn.save(Stranger())
    name = f"{Stranger.__module__}.Stranger"
    with pytest.raises(Unsupported) as raised:
        sklearn.complete()
    assert f"contains types that are not scikit-learn's: {name}" in raised.value.message
    assert f"--backend-config=sklearn,trusted_types={name}" in raised.value.message
    with pytest.raises(Unsupported):  # a model's config is not the operator's word
        sklearn.complete(ModelConfig(parameters={"trusted_types": ModelParameter(name)}))
    assert sklearn.complete(settings={"trusted_types": name}).output[0].name == "predict"


def test_only_classes_that_scikit_learn_defines_are_its_own(sklearn):
    from shoal.backends.tabular.sklearn import _is_sklearns_own

    assert _is_sklearns_own("sklearn.tree._tree.Tree")
    for name in (
        "sklearn.utils.parallel.Parallel.no",
        "sklearn.datasets.load_files",  # a function
        "sklearn.base.np",  # not its own
        "sklearn.no_such.Thing",
        "sklearn.externals._packaging.version.Version",
        "os.system",
        "sklearnish.Thing",
    ):
        assert not _is_sklearns_own(name), name


def test_over_the_wire_with_the_flag_on_the_command_line(sklearn, tmp_path):
    folder = add_model(tmp_path, "tree", None)
    tabular_models.save_sklearn(tabular_models.step_tree(2.0), folder / "1" / "model.joblib")
    with running_server(tmp_path, model_control_mode="explicit") as running:
        answer = running.load("tree")
        assert answer.status == 400
        assert "allow_pickle=true" in answer.error
    options = {"backend_config": (("sklearn", "allow_pickle", "true"),)}
    with running_server(tmp_path, **options) as running:
        assert running.states("tree") == {"1": "READY"}


# --- XGBoost ---


@pytest.fixture
def boosters(loader):
    """Writes a booster of either library and loads it with its backend."""

    def use(backend, booster, name):
        loader.backend = backend
        tabular_models.save_booster(booster, loader.version_folder / name)
        return loader

    return use


@pytest.fixture
def xgboost(boosters):
    pytest.importorskip("xgboost")
    from shoal.backends.tabular.xgboost import XgboostBackend

    def use(options, labels, name="model.ubj", rounds=4, **more):
        import xgboost

        features, _ = table()
        data = xgboost.DMatrix(features, labels)
        booster = xgboost.train({"nthread": 1, **options}, data, num_boost_round=rounds, **more)
        return boosters(XgboostBackend(), booster, name), booster

    return use


@pytest.mark.parametrize("name", ["model.ubj", "model.json"])
def test_xgboost_classes(xgboost, name):
    _, labels = table()
    loader, _ = xgboost({"objective": "multi:softprob", "num_class": 3}, labels, name)
    assert summary(loader.complete().output) == [
        ("predict", "TYPE_INT64", (1,)),
        ("predict_proba", "TYPE_FP32", (3,)),
    ]
    label, odds = (
        loader.load().executor(ON_CPU).run({"features": row(2)}, ["predict", "predict_proba"])
    )
    assert label.tolist() == [[2]]
    assert np.isclose(odds.sum(), 1)


def test_xgboost_two_classes_and_a_threshold(xgboost):
    _, labels = table()
    loader, booster = xgboost({"objective": "binary:logistic"}, labels == 2)
    label, odds = (
        loader.load().executor(ON_CPU).run({"features": row(2)}, ["predict", "predict_proba"])
    )
    assert label.tolist() == [[1]]
    assert np.allclose(odds[0, 1], booster.inplace_predict(row(2)))
    strict = loader.load(parameters={"threshold": "0.999"}).executor(ON_CPU)
    assert strict.run({"features": row(2)}, ["predict"])[0].tolist() == [[0]]


@pytest.mark.parametrize(
    ("options", "outputs"),
    [
        ({"objective": "multi:softmax", "num_class": 3}, [("predict", "TYPE_INT64", (1,))]),
        ({"objective": "reg:squarederror"}, [("predict", "TYPE_FP32", (1,))]),
        ({"booster": "gblinear"}, [("predict", "TYPE_FP32", (1,))]),
        ({"booster": "dart"}, [("predict", "TYPE_FP32", (1,))]),
    ],
)
def test_xgboost_objectives(xgboost, options, outputs):
    _, labels = table()
    loader, booster = xgboost(options, labels)
    assert summary(loader.complete().output) == outputs
    import xgboost as library

    (answer,) = loader.load().executor(ON_CPU).run({"features": row(1)}, ["predict"])
    assert np.allclose(answer.reshape(-1), booster.predict(library.DMatrix(row(1))))


def test_xgboost_uses_the_best_iteration_of_training(xgboost):
    import xgboost as library

    features, labels = table()
    noise = np.random.default_rng(1).random(len(labels))
    held = library.DMatrix(features, noise)
    loader, booster = xgboost(
        {"eta": 1.0},
        labels,
        rounds=30,
        evals=[(held, "held")],
        early_stopping_rounds=2,
        verbose_eval=False,
    )
    best = booster.best_iteration
    assert best + 1 < booster.num_boosted_rounds()
    (answer,) = loader.load().executor(ON_CPU).run({"features": row(1)}, ["predict"])
    expected = booster.predict(library.DMatrix(row(1)), iteration_range=(0, best + 1))
    assert np.allclose(answer.reshape(-1), expected)


def test_xgboost_missing_values(xgboost):
    _, labels = table()
    loader, _ = xgboost({}, labels)
    (answer,) = loader.load().executor(ON_CPU).run({"features": row(np.nan)}, ["predict"])
    assert np.isfinite(answer).all()


# --- LightGBM ---


@pytest.fixture
def lightgbm(boosters):
    pytest.importorskip("lightgbm")
    from shoal.backends.tabular.lightgbm import LightgbmBackend

    def use(options, labels):
        import lightgbm

        features, _ = table()
        quiet = {"verbose": -1, "min_data_in_leaf": 1, "num_threads": 1}
        booster = lightgbm.train({**quiet, **options}, lightgbm.Dataset(features, labels), 5)
        return boosters(LightgbmBackend(), booster, "model.txt"), booster

    return use


def test_lightgbm_classes(lightgbm):
    _, labels = table()
    loader, booster = lightgbm({"objective": "multiclass", "num_class": 3}, labels)
    assert summary(loader.complete().output) == [
        ("predict", "TYPE_INT64", (1,)),
        ("predict_proba", "TYPE_FP32", (3,)),
    ]
    label, odds = (
        loader.load().executor(ON_CPU).run({"features": row(2)}, ["predict", "predict_proba"])
    )
    assert label.tolist() == [[2]]
    assert np.allclose(odds, booster.predict(row(2)))


def test_lightgbm_two_classes(lightgbm):
    _, labels = table()
    loader, booster = lightgbm({"objective": "binary"}, labels == 2)
    label, odds = (
        loader.load().executor(ON_CPU).run({"features": row(2)}, ["predict", "predict_proba"])
    )
    assert label.tolist() == [[1]]
    assert np.allclose(odds[0], [1 - booster.predict(row(2))[0], booster.predict(row(2))[0]])


def test_lightgbm_regression_of_whole_numbers(lightgbm):
    _, labels = table()
    loader, booster = lightgbm({"objective": "regression"}, labels)
    config = ModelConfig(input=(ModelInput(name="x", data_type="TYPE_INT16", dims=(3,)),))
    rows = np.array([[2, 0, 0]], np.int16)
    (answer,) = loader.load(config).executor(ON_CPU).run({"x": rows}, ["predict"])
    assert np.allclose(answer.reshape(-1), booster.predict(rows.astype(float)))


# --- the conventions of Triton's fil backend ---

FIL = """
backend: "fil"
max_batch_size: 32768
input [ { name: "input__0" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "output__0" data_type: TYPE_FP32 dims: [ %d ] } ]
instance_group [ { kind: KIND_AUTO } ]
parameters [
  { key: "model_type" value: { string_value: "%s" } },
  { key: "output_class" value: { string_value: "true" } },
  { key: "predict_proba" value: { string_value: "%s" } },
  { key: "storage_type" value: { string_value: "AUTO" } }
]
dynamic_batching {}
"""


@pytest.mark.parametrize(
    ("library", "model_type", "filename"),
    [
        ("xgboost", "xgboost_ubj", "xgboost.ubj"),
        ("xgboost", "xgboost_json", "xgboost.json"),
        ("lightgbm", "lightgbm", "model.txt"),
    ],
)
def test_a_repository_made_for_fil(request, tmp_path, library, model_type, filename):
    _, labels = table()
    options = {"objective": "multiclass" if library == "lightgbm" else "multi:softprob"}
    _, booster = request.getfixturevalue(library)({**options, "num_class": 3}, labels)
    for name, text in (
        ("class", FIL % (1, model_type, "false")),
        ("odds", FIL % (3, model_type, "true")),
    ):
        folder = add_model(tmp_path / "models", name, text)
        tabular_models.save_booster(booster, folder / "1" / filename)
    import tritonclient.http as triton

    with running_server(tmp_path / "models") as running:
        tensor = triton.InferInput("input__0", [1, 3], "FP32")
        tensor.set_data_from_numpy(row(2))
        client = triton.InferenceServerClient(running.http_address)
        assert client.infer("class", [tensor]).as_numpy("output__0").tolist() == [[2.0]]
        odds = client.infer("odds", [tensor]).as_numpy("output__0")
        client.close()
    assert odds.shape == (1, 3)
    assert odds.argmax() == 2


def test_fil_completes_its_config_and_refuses_treelite(xgboost):
    from shoal.backends.tabular.fil import FilBackend

    _, labels = table()
    loader, _ = xgboost({"objective": "binary:logistic"}, labels == 2, "xgboost.json")
    loader.backend = FilBackend()
    assert summary(loader.complete().output) == [("output__0", "TYPE_FP32", (1,))]
    asks = {"predict_proba": ModelParameter("true")}
    assert loader.complete(ModelConfig(parameters=asks)).output[0].dims == (2,)
    (loader.version_folder / "checkpoint.tl").touch()
    treelite = {"model_type": ModelParameter("treelite_checkpoint")}
    with pytest.raises(ConfigError, match=r"Treelite checkpoints cannot be served.*xgboost_ubj"):
        loader.complete(ModelConfig(parameters=treelite))
    unknown = {"model_type": ModelParameter("catboost")}
    with pytest.raises(ConfigError, match=r"'model_type'\]: found 'catboost'. Write xgboost_ubj"):
        loader.complete(replace(ModelConfig(), parameters=unknown))
