"""Files, sentences and tokens: from bytes that a user has to ids that a model takes."""
