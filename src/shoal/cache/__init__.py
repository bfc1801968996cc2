"""The response cache: answers that were given before, for requests that ask the same again.

    request --CacheDoor--> CacheStore --> LocalCache | RedisCache | one from an installed package
               │ nothing there
               └──> the model's queue --> ... --> the answer is kept on its way back

base.py is the contract of a cache, entry.py what it keeps, key.py what makes two requests the same.
"""
