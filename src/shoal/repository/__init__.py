"""What is served: folders of models, their versions and their lifecycles."""
