"""VGG19 from a file: features against loops, and one sentence for every wrong file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gppvae.likelihoods import VGG19
from gppvae.likelihoods.features import FrozenFeatures
from likelihoods.feature_networks import VGG_LAYERS, convolve, numbers, vgg_state, write_vgg

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def pooled(maps: np.ndarray) -> np.ndarray:
    """The largest of each 2 x 2 square; an odd last row or column is dropped."""
    out = np.zeros((len(maps), maps.shape[1] // 2, maps.shape[2] // 2))
    for i in range(out.shape[1]):
        for j in range(out.shape[2]):
            out[:, i, j] = maps[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max((1, 2))
    return out


def in_loops(image: np.ndarray, state: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """All relu outputs of one image (3, h, w) in [0, 1]."""
    maps, found = (image - MEAN[:, None, None]) / STD[:, None, None], {}
    for name, index in VGG_LAYERS.items():
        if name.endswith("_1") and name != "1_1":
            maps = pooled(maps)
        weight, bias = numbers(state[f"features.{index}.weight"]), numbers(state[f"features.{index}.bias"])
        maps = np.maximum(convolve(maps, weight, bias, 1, 1), 0.0)
        found[f"relu{name}"] = maps
    return found


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_features_are_those_of_the_layout(tmp_path: Path, kind: str, rng: np.random.Generator) -> None:
    network = VGG19(write_vgg(tmp_path, kind)).double()
    names = [f"relu{name}" for name in VGG_LAYERS]
    images = rng.random((2, 3, 19, 16))
    found = FrozenFeatures(network, names)(torch.from_numpy(images))
    for number in range(2):
        wanted = in_loops(images[number], vgg_state())
        for name, feature in zip(names, found, strict=True):
            np.testing.assert_allclose(feature[number].numpy(), wanted[name], rtol=1e-5, atol=1e-7, err_msg=name)


def test_a_grey_image_is_three_equal_channels(tmp_path: Path, rng: np.random.Generator) -> None:
    network = VGG19(write_vgg(tmp_path))
    grey = torch.from_numpy(rng.random((2, 1, 16, 16))).float()
    torch.testing.assert_close(network(grey), network(grey.repeat(1, 3, 1, 1)))


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in vgg_state().items() if key != name}


def of_shape(name: str, *shape: int) -> dict[str, Any]:
    return vgg_state() | {name: torch.zeros(*shape)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (without("features.34.bias"), r"expected features\.34\.bias of VGG19 in .*, found none; take the file"),
        (without("features.0.weight"), r"expected features\.0\.weight"),
        (of_shape("features.2.weight", 2, 5, 3, 3), r"features\.2 of VGG19 .* \(n, 2, 3, 3\).* got \(2, 5, 3, 3\)"),
        (of_shape("features.0.weight", 2, 1, 3, 3), r"\(n, 3, 3, 3\) weights with n biases, got \(2, 1, 3, 3\)"),
        (of_shape("features.5.weight", 3, 2, 5, 5), r"got \(3, 2, 5, 5\)"),
        (of_shape("features.7.bias", 9), r"got \(3, 3, 3, 3\) and \(9,\)"),
        (of_shape("features.7.weight", 3), r"got \(3,\)"),
        (vgg_state() | {"features.0.bias": torch.full((2,), torch.nan)}, r"finite numbers in features\.0\.bias"),
        ({"state": 3}, r"expected features\.0\.weight"),
        ([torch.zeros(2)], r"expected features\.0\.weight"),
    ],
)
def test_wrong_and_incomplete_files_get_one_sentence(tmp_path: Path, content: Any, words: str) -> None:
    file = tmp_path / "weights.pth"
    torch.save(content, file)
    with pytest.raises(ValueError, match=words) as told:
        VGG19(file)
    assert str(file) in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_damaged_and_missing_files_get_one_sentence(tmp_path: Path, kind: str) -> None:
    file = write_vgg(tmp_path, kind)
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"weights"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="is cut short or not a") as told:
            VGG19(file)
        assert "\n" not in str(told.value)
    with pytest.raises(FileNotFoundError, match="found no file; name torchvision's vgg19 file"):
        VGG19(tmp_path / "nothing.pth")


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    file = tmp_path / "trap.pth"
    torch.save(vgg_state() | {"features.0.weight": Trap()}, file)
    with pytest.raises(ValueError, match="not a file of tensors"):
        VGG19(file)
    assert not (tmp_path / "ran").exists()


def test_a_safetensors_file_is_read_by_its_suffix_only(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    save_file(vgg_state(), file)
    with pytest.raises(ValueError, match=r"or name a \.safetensors"):
        VGG19(file)


@pytest.mark.parametrize("shape", [(2, 2, 16, 16), (2, 16)])
def test_samples_that_are_no_images_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="images of 1 or 3 channels, got samples of shape"):
        VGG19(write_vgg(tmp_path))(torch.zeros(shape))
