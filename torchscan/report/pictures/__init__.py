"""Pictures, with matplotlib, which is an extra."""
