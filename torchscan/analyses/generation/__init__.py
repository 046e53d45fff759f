"""What generating text costs: a pass over the prompt, and one for each token after it."""
