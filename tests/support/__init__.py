"""Fakes, tiny models and helpers that several test folders share.

    repositories, ensembles                     model repositories and configs
    onnx_models, torch_models, *_models         tiny models of each format
    encoders, text_generators, sequences        tiny models for embeddings, texts and sequences
    client, held_model, refusals                requests to a running server
    fakes                                       backend, clock and reply that a test controls
    scripted_engine, grpc_calls, http_listener  frontends without a server behind them
    backend_loader                              a backend without a server
    redis, questions, traces                    other servers that Shoal or its programs talk to

Each module is imported for itself, because some need optional libraries.
"""
