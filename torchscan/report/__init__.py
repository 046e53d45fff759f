"""From a Trace to what people read: the info dict at the border, and text made from it."""
