"""The paper's second experiment: people in nine poses, predicted in poses in which they were not seen."""
