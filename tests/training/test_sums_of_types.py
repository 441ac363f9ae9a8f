"""Sums over processes are those of each type, in as few messages as lose nothing."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from processes import torchrun
from training.sums_of_types import tensors_of

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def summed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("summed")
    torchrun(FOLDER / "sums_of_types.py", folder, processes=3)
    return folder


@pytest.mark.parametrize("few", [True, False])
def test_every_process_has_the_sum_in_the_type_it_came_in(few: bool, summed: Path) -> None:
    parts = [tensors_of(rank, few) for rank in range(3)]
    found = [load_file(summed / f"{'few' if few else 'many'}-{rank}.safetensors") for rank in range(3)]
    for name, first in parts[0].items():
        exact = first.dtype if first.dtype is torch.int64 else torch.float64
        wanted = torch.stack([part[name].to(exact) for part in parts]).sum(0)
        for own in found:
            assert own[name].dtype is first.dtype and torch.equal(own[name], found[0][name])
            bound = 0.0 if exact is torch.int64 else 4.0 * torch.finfo(first.dtype).eps
            assert ((own[name].to(exact) - wanted).abs() <= bound * 10.0).all(), name
    if few:  # float32 is added up in float64 and rounded once
        wanted = torch.stack([part["network"].double() for part in parts]).sum(0).float()
        assert torch.equal(found[0]["network"], wanted)


def test_few_floats_share_one_message_and_many_keep_their_type(summed: Path) -> None:
    found = [load_file(summed / f"{name}-0.safetensors") for name in ("few", "many")]
    sent = [{key: int(size) for key, size in own.items() if key.startswith("sent")} for own in found]
    few, many = tensors_of(0, few=True), tensors_of(0, few=False)
    doubles = few["kernel"].numel() + 1
    assert sent[0] == {"sent torch.float64": few["network"].numel() + 5 + doubles, "sent torch.int64": 1}
    narrow = many["network"].numel() + 5
    assert sent[1] == {"sent torch.float32": narrow, "sent torch.float64": doubles, "sent torch.int64": 1}
