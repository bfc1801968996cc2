"""This server's HTTP interface as an OpenAPI 3.1 document: what GET /openapi.json returns.

    declared routes --paths--> document
                                  '--> schemas

Everything about a route comes from its declaration (see `routes`). JSON schemas that routes share
are in `schemas`.
"""
