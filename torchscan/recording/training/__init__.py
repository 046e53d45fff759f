"""What a training step does beyond its forward pass: gradients, optimizers, autocast."""
