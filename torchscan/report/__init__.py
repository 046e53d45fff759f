"""From a Trace to what people read: rows, one Table, and one writer for each format."""
