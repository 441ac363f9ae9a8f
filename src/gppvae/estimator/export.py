"""Export of the decoder for use without this package: torch.export and ONNX."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from gppvae.data.arrays import to_input_layout
from gppvae.data.atomic import write_bytes
from gppvae.models.vae import Autoencoder

ONNX_NEEDS = ("onnx", "onnxscript")


class DecodedMean(nn.Module):
    """z (B, L) float32 -> E[y | z] with the axes of the training samples; counts are those of a typical size."""

    def __init__(self, autoencoder: Autoencoder, layout: str) -> None:
        super().__init__()
        self.decoder, self.likelihood, self.layout = autoencoder.decoder, autoencoder.likelihood.values, layout

    def forward(self, z: Tensor) -> Tensor:
        decoded: Tensor = to_input_layout(
            self.likelihood.mean(self.likelihood.sized(self.decoder(z), None)), self.layout
        )
        return decoded


def export_decoder(autoencoder: Autoencoder, layout: str, n_latents: int) -> torch.export.ExportedProgram:
    """The decoder as a graph for any batch size, (B, n_latents), on the CPU."""
    module, example = _on_cpu(autoencoder, layout, n_latents)
    with quiet():
        return torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))


def write_onnx(autoencoder: Autoencoder, layout: str, n_latents: int, path: str | os.PathLike[str]) -> Path:
    """Write the decoder as an ONNX file with the input `z` and the output `mean`."""
    missing = [name for name in ONNX_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"to_onnx needs {' and '.join(missing)}, which is not installed; pip install 'gppvae[onnx]'")
    module, example = _on_cpu(autoencoder, layout, n_latents)
    shapes = {"z": {0: torch.export.Dim("batch", min=1)}}
    with quiet():
        program = torch.onnx.export(
            module, (example,), dynamo=True, input_names=["z"], output_names=["mean"], dynamic_shapes=shapes,
            verbose=False,
        )  # fmt: skip
    assert program is not None
    for node in program.model.graph:  # a mean inside the decoder gets the same name from the exporter
        for value in node.outputs:
            if value.name == "mean" and not value.is_graph_output():
                value.name = "mean_inside"
    return write_bytes(Path(path), program.model_proto.SerializeToString())


def _on_cpu(autoencoder: Autoencoder, layout: str, n_latents: int) -> tuple[nn.Module, Tensor]:
    module = DecodedMean(copy.deepcopy(autoencoder), layout).cpu().eval()
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)  # for torch.export.save
    return module.requires_grad_(False), torch.zeros(2, n_latents)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings of the exporters about their own internals; tests compare the results."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
