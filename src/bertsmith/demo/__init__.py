"""The quickstart: all steps from text to scores, on the documentation that every Python installation has."""
