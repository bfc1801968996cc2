"""Ports for cloud platforms, which send requests by their own rules: SageMaker and Vertex AI."""
