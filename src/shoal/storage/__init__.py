"""Model repositories that are not folders of this machine: object stores, archives, hubs."""
