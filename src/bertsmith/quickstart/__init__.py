"""The quickstart: all steps on the documentation that every Python installation has."""
