"""The paper's first experiment: handwritten threes at 16 angles, predicted at one that was held out."""
