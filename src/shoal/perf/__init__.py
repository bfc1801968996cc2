"""Measures a server under load: the engine of `shoal perf`.

    options --> Profiler --level--> Fleet --commands--> Worker (thread or process) --> server
                   '--> windows --> stability --> search --> text, CSV, export, report

Requests are made once (`requests`) and replayed; a worker (`worker`) owns sockets and a clock and
little else. What decides anything (`stability`, `search`, `schedule`, `summary`) knows neither.
"""
