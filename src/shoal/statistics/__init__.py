"""What happened, counted: per-model statistics, and the Prometheus text made from them."""
