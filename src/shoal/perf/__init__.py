"""Measures a server under load: the implementation of `shoal perf`.

    options --> Profiler --level--> WorkerPool --commands--> LoadWorker (thread or process)
                   |                                              '--> connections --> server
                   '--> windows --> stability --> search --> text, CSV, export, report

Requests are encoded once (`requests`) and replayed; a worker (`worker`) owns sockets, a clock and
little else. The modules that decide (`stability`, `search`, `schedule`, `summary`) do no I/O.
"""
