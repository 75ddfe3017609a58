"""Labels of the text itself: what a model is pre-trained to predict."""
