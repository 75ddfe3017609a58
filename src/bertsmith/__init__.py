"""bertsmith: from a folder of text to a BERT of your own."""
