"""The cost of text generation: a pass over the prompt, and one pass per generated token."""
