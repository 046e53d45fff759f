"""Sinks: other destinations of a watched run."""
