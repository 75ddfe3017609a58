"""Self-contained HTML pages and plots of corpora, tokenizers, and runs."""
