"""From bytes that a user has to documents, sentences and rows, each with its place: file and line."""
