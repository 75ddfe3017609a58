"""What is wrong with a corpus, before hours are spent on it: in one pass, a file a kind of finding."""
