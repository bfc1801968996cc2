"""The response cache: stored responses, for requests that are equal to an earlier one.

    request --CachingScheduler--> CacheStore --> LocalCache | RedisCache | an installed one
               │ miss
               └──> the model's queue --> ... --> the response is stored on its way back

base.py is the contract of a cache, entry.py what it stores, key.py what makes two requests equal.
"""
