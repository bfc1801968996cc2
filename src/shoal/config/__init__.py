"""How models and the server are configured.

    config.pbtxt --pbtxt--> ModelConfig --normalise--> (the backend completes) --rules--> served

`model` holds the one form of a model's configuration; nothing after parsing sees protobuf.
"""
