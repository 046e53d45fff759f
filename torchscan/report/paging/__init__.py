"""The page of a model: its data, and the one file that holds it with what shows it."""
