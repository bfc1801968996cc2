"""The protobuf schema of the protocol, in a descriptor pool of our own.

    *.proto --build (developers)--> schema.binpb --schema (first use)--> messages.ModelInferRequest

The pool is private because protobuf refuses two definitions of one name in its default pool, and
`tritonclient.grpc` puts the same names there: with ours apart, both can live in one process.
"""
