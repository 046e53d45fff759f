"""Observation of real training: steps, calls, gradients, optimizers and the compiler."""
