"""Isolated Python execution as a service: warm interpreters, sessions, hard limits, honest results."""
