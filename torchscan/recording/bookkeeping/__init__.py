"""Who is who during a pass: tensors, their memory, containers that hold them, the slots of a model."""
