"""Functions over HTTP: their own routes, and `generate` for those that are functions.

fields       what a request has sent --> the function's tensors, or a sentence about its fields
results      the function's tensors --> JSON, a file, or events
calls        one call of a function, from the request to its response
routing      the routes of functions that serve now
application  ASGI applications that are served beside functions
"""
