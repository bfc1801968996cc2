"""What runs: instances pull batches from a model's queue and execute them."""
