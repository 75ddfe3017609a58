"""Model folders in the Hugging Face layout: read, verified, and written."""
