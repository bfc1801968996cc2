"""Compare Shoal with other servers, with load generators of others: `python -m benchmarks`.

    models --> peers (one environment each) --> loads --> measures --> report, plots, docs

README.md in this folder describes what is measured and how.
"""
