"""Read files as text, rows, and documents with their locations; write files atomically."""
