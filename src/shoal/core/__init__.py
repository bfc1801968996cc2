"""The types that everything else uses: dtypes, tensors, requests, replies. No I/O, no protocol."""
