"""Pages and plots: finished work as one file that a browser opens, with nothing to fetch from elsewhere."""
