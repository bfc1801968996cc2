"""What waits, and for how long: the queue in front of a model's instances."""
