"""Pure functions from a Trace to a result; none touches a live module."""
