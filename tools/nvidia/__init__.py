"""The parts of tools/nvidia_clients.py."""
