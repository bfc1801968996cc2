"""Models of rows for tests: a step that is easy to check, in every library.

    save_sklearn(step_tree(5.0), folder / "1" / "model.skops")

A step gives `height` where the first feature is above one half, and 0 elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

FEATURES = 4


def step_rows(rows: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Features whose first column is 0 or 1, and that column."""
    features = np.random.default_rng(0).random((rows, FEATURES))
    features[:, 0] = np.arange(rows) % 2
    return features, features[:, 0].copy()


def step_tree(height: float) -> Any:
    """A fitted scikit-learn tree."""
    from sklearn.tree import DecisionTreeRegressor

    features, step = step_rows()
    return DecisionTreeRegressor(max_depth=1).fit(features, step * height)


def step_xgboost(height: float, **more: Any) -> Any:
    """A fitted XGBoost booster."""
    import xgboost

    features, step = step_rows()
    options = {"eta": 1.0, "lambda": 0.0, "base_score": 0.0, "max_depth": 1, **more}
    return xgboost.train(options, xgboost.DMatrix(features, step * height), num_boost_round=1)


def step_lightgbm(height: float) -> Any:
    """A fitted LightGBM booster."""
    import lightgbm

    features, step = step_rows()
    options = {"learning_rate": 1.0, "min_data_in_leaf": 1, "num_leaves": 2, "verbose": -1}
    return lightgbm.train(options, lightgbm.Dataset(features, step * height), num_boost_round=1)


def large_regression(size: int, seed: int = 0) -> Any:
    """A scikit-learn regression with `size` x `size` coefficients of 8 bytes."""
    from sklearn.linear_model import LinearRegression

    generator = np.random.default_rng(seed)
    model = LinearRegression().fit(np.zeros((2, 1)), np.zeros((2, 1)))
    model.coef_ = generator.random((size, size))
    model.intercept_ = np.zeros(size)
    model.n_features_in_ = size
    return model


def large_xgboost(trees: int) -> Any:
    """A booster of `trees` trees with some hundred leaves each."""
    import xgboost

    options = {"max_depth": 12, "min_child_weight": 0, "lambda": 0, "nthread": 1}
    options |= {"num_parallel_tree": trees}
    return xgboost.train(options, xgboost.DMatrix(*_noise()), num_boost_round=1)


def large_lightgbm(trees: int) -> Any:
    """A booster of `trees` trees with some hundred leaves each."""
    import lightgbm

    options = {"num_leaves": 900, "min_data_in_leaf": 1, "min_sum_hessian_in_leaf": 0}
    options |= {"verbose": -1, "num_threads": 1}
    return lightgbm.train(options, lightgbm.Dataset(*_noise()), num_boost_round=trees)


def _noise(rows: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Features and targets with nothing to learn, so that trees grow as far as they may."""
    generator = np.random.default_rng(0)
    return generator.random((rows, FEATURES)), generator.random(rows)


def save_sklearn(estimator: Any, file: Path) -> Path:
    """Store an estimator with skops, or with joblib under any other name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".skops":
        import skops.io

        skops.io.dump(estimator, file)
    else:
        import joblib

        joblib.dump(estimator, file)
    return file


def save_booster(booster: Any, file: Path) -> Path:
    """Store a booster of either library."""
    file.parent.mkdir(parents=True, exist_ok=True)
    booster.save_model(str(file))
    return file
