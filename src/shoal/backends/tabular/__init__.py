"""Models of tables, one row of features in and one prediction out: scikit-learn and boosted trees.

predictor  what such a model offers, whatever library it comes from
backend    the part all of them share: configs, instances, datatypes
sklearn    scikit-learn estimators and pipelines (model.skops; model.joblib where that is allowed)
xgboost    XGBoost (model.ubj, model.json)
lightgbm   LightGBM (model.txt)
fil        the same trees under the conventions of Triton's `fil` backend
"""
