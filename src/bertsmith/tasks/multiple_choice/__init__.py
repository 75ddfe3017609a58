"""One of several choices: `choose`."""
