"""Encoders and decoders: convolutional, fully connected, and the paper's two architectures."""
