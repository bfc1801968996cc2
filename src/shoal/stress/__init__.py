"""`shoal stress`: latency of questions by sessions and clients, without and with batching.

    model, questions --> run --> a server per row --> load: perf's worker --> Cell
                                                         '--> table, files, page

A session is an instance of the model; a client is a connection that sends one question after the
other.
"""
