"""Running a model once and writing down what happened."""
