"""The ways to run an operator: for real, or on shapes alone."""
