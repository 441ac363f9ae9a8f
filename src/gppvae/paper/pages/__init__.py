"""Pages and tables of the experiments."""
