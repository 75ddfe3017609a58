"""Folders that leave the house: models in the field's file layout, read and written."""
