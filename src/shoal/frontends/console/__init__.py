"""The web console: a page to watch the server and to try its models.

    browser --GET /--> files.py (HTML, CSS, JavaScript from `static/`)
            --GET /v2/console, every second--> state.py

The page asks for everything else where every other client asks: the index, metadata, configs,
explanations and inference. Nothing here runs, or is even read from disk, before somebody looks.
"""
