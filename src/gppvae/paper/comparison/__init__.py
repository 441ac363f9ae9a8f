"""The comparison of methods that both experiments of the paper share; each brings its data and its recipes."""
