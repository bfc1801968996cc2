"""The routes of OpenAI's API, for clients that speak nothing else: /v1/models, /v1/embeddings,
/v1/completions and /v1/chat/completions.

    official client --/v1/…--> door --> routes --> a task, or a model that takes and gives text

Nothing of this is imported before the first request for it.
"""
