"""The training loop, phases as data, checkpoints and progress."""
