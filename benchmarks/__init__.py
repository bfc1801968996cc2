"""Shoal and its peers side by side, in turns, under loads not ours: `python -m benchmarks`.

    models --> peers (one environment each) --> loads --> measures --> report, plots, docs

The folder's README says what is measured and how.
"""
