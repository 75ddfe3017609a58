"""One answer for each word: `tag`."""
