"""What is loaded: versions of models and of ensembles, each ready to take requests."""
