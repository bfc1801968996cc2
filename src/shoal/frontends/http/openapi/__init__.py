"""This server's HTTP interface as an OpenAPI 3.1 document: what /openapi.json answers.

    ROUTES --spellings--> paths --operations--> document
                                    '--> schemas

Paths, methods and restrictions come from the table of routes, so none can be forgotten; the words
and the JSON schemas stand beside each other in `operations` and `schemas`.
"""
