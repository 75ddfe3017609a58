"""Labels of people: one file a task, from the user's file to the score."""
