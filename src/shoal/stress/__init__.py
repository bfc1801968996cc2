"""`shoal stress`: how long questions take, by sessions and clients, without batching and with it.

    model, material --> run --> Bench: a server per row --> load: many sockets --> Cell
                                                               '--> table, files, page

A session is an instance of the model; a client is a connection that asks one question after the
other.
"""
