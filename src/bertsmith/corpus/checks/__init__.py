"""What a text and a tokenizer are like, before hours are spent on them: in one pass, a file a kind of finding."""
