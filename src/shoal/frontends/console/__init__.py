"""The web console: a page to watch the server and to try its models.

    browser --GET /--> files.py (HTML, CSS, JavaScript from `static/`)
            --GET /v2/console, every second--> state.py

The page uses the same routes as every other client for the rest: the index, metadata, configs,
explanations and inference. Nothing here runs, or is read from disk, before the first request.
"""
