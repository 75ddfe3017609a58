"""The whole way in minutes, on text that every Python installation carries."""
