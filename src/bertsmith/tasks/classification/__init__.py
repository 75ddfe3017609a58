"""One answer for a text, or for a pair of texts: `classify`, `regress`."""
