"""Model families, one file each with the differences from BERT; `family.FAMILIES` lists them."""
