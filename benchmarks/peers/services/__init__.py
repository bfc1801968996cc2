"""What runs inside the peers' own environments: one short service each, one model for all."""
