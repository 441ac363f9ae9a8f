"""The training loop, phases, checkpoints and progress."""
