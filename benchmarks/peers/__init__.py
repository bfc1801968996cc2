"""The servers that are compared: one short file each, one interface for all (`base.Peer`)."""
