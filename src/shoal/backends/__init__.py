"""What computes: one module per runtime, all behind the contract in `base`."""
