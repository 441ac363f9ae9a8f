"""Where the example data comes from: one module per data set, each found by folder or made on the spot."""
