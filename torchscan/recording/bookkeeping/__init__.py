"""Identities during a pass: tensors, their memory, their containers, and the slots of a model."""
