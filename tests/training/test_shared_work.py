"""Two and three real processes give the gradients, terms and posteriors of one, for every inference."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from gppvae.data.world import ALONE
from processes import torchrun
from training.shared_work import CASES, WITH_ONE_ROW, everything

SCRIPT = Path(__file__).parent / "shared_work.py"


@pytest.fixture(scope="module")
def alone() -> dict[str, Tensor]:
    return everything(ALONE)


@pytest.fixture(scope="module", params=[2, 3])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Tensor]]:
    """What each process found."""
    folder = tmp_path_factory.mktemp("shared")
    torchrun(SCRIPT, folder, processes=request.param)
    return [load_file(folder / f"{rank}.safetensors") for rank in range(request.param)]


def test_every_process_ends_with_the_same_numbers(shared: list[dict[str, Tensor]]) -> None:
    for other in shared[1:]:
        assert other.keys() == shared[0].keys()
        assert all(torch.equal(other[name], shared[0][name]) for name in other)


@pytest.mark.parametrize(("name", "batch_size"), [*CASES, *((name, "one row") for name in WITH_ONE_ROW)])
def test_processes_add_up_to_one(
    name: str, batch_size: int | str, alone: dict[str, Tensor], shared: list[dict[str, Tensor]]
) -> None:
    start = f"{name}/{batch_size}/"
    wanted = {key: value for key, value in alone.items() if key.startswith(start)}
    assert wanted and {key for key in shared[0] if key.startswith(start)} == wanted.keys()
    assert any(value.abs().max() > 1e-3 for key, value in wanted.items() if "encoder" in key or "kernel" in key)
    for key, value in wanted.items():
        torch.testing.assert_close(
            shared[0][key], value, rtol=1e-9, atol=1e-10, msg=lambda text, key=key: f"{key}: {text}"
        )
