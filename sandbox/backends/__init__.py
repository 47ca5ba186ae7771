"""Isolation tiers behind one interface, each probed by doing."""
