"""The vectors nearest to a query's: an index on disk, exact and approximate search. No model is known here."""
