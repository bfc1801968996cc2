"""The words everything else speaks: dtypes, tensors, requests, replies. No I/O, no protocol."""
