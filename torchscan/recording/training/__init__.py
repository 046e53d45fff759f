"""Parts of a training step besides the forward pass: gradients, optimizers, autocast."""
