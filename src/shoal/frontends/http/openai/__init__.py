"""OpenAI's API, for its clients: /v1/models, /v1/embeddings, /v1/completions and
/v1/chat/completions; /v1/audio; and /v1/rerank, as Cohere's clients call it.

    client --/v1/…--> endpoints --> routes --> a task, or a model that takes and returns text

Only `endpoints` is imported before the first request.
"""
