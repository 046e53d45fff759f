"""The machine that makes a record: runs a model once and writes down what happens."""
