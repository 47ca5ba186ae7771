"""A policy played outside training: found by the path that a user types, served, asked."""
