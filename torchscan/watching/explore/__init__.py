"""A run in the browser, while it is written or afterwards."""
