"""`members=`: an ensemble that fits, saves, loads and answers like any model."""

import copy
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.tiny import KERNEL, held_out

from gppvae import GPPVAE, Callback
from gppvae.data.table import Table
from gppvae.estimator.choices import Networks, choose_networks
from gppvae.estimator.kernel_summary import kernel_rows, kernel_text
from gppvae.explore.terms import noise_without, terms_of, weight_masks
from gppvae.inference import INFERENCES
from gppvae.models.terms import contributions, kernel_terms
from gppvae.nets.members import MemberDecoder

SMALL = {"latent_dim": 6, "network": "image", "width": 4, "members": 2, "epochs": 2, "warmup_epochs": 1, "gp_epochs": 1}
FITS = [name for name in INFERENCES if name not in ("vae", "fixed", "distill")]


@pytest.mark.parametrize("inference", FITS)
def test_saved_and_loaded_it_answers_the_same(tmp_path: Path, inference: str) -> None:
    images, table, wanted, asked = held_out()
    model = GPPVAE(KERNEL, inference=inference, **SMALL).fit(images, table, progress=False)
    model.save(tmp_path)
    again = GPPVAE.load(tmp_path)
    assert isinstance(again.model_.autoencoder.decoder, MemberDecoder)
    np.testing.assert_array_equal(again.predict(asked).mean, model.predict(asked).mean)
    assert again.encode(images).shape == (len(images), 6)
    assert model.resolved_["members"] == 2
    assert np.isfinite(model.score(wanted, asked))


def test_groups_of_latents_are_divided_too() -> None:
    images, table, _, asked = held_out()
    settings = SMALL | {"latent_dim": None}
    model = GPPVAE([(KERNEL, 4), (None, 2)], inference="minibatch", **settings).fit(images, table, progress=False)
    assert np.isfinite(model.predict(asked, n_samples=4).std).all()


def test_a_stopped_fit_continues_with_the_same_members(tmp_path: Path) -> None:
    images, table, _, asked = held_out()
    whole = GPPVAE(KERNEL, seed=1, epochs=3).fit(images, table, out=tmp_path / "whole", progress=False)

    class Stop(Callback):
        def on_epoch(self, phase: str, epoch: int, metrics: dict[str, float]) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        GPPVAE(KERNEL, seed=1, epochs=3).fit(images, table, out=tmp_path / "part", progress=False, callbacks=[Stop()])
    again = GPPVAE.resume(tmp_path / "part", images, table, progress=False)
    assert again.resolved_["members"] == whole.resolved_["members"] == 3
    np.testing.assert_array_equal(again.predict(asked).mean, whole.predict(asked).mean)


def test_few_images_get_an_ensemble_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    images, table, _, _ = held_out()
    with caplog.at_level(logging.INFO, "gppvae"):
        model = GPPVAE(KERNEL, epochs=1).fit(images, table, progress=False)
    assert (model.resolved_["members"], model.resolved_["width"], model.resolved_["latent_dim"]) == (3, 16, 64)
    assert "an ensemble of 3 networks, which predict by their average" in caplog.text
    few_latents = GPPVAE(KERNEL, latent_dim=8, epochs=1).fit(images, table, progress=False)
    assert (few_latents.resolved_["members"], few_latents.resolved_["width"]) == (1, 32)


@pytest.mark.parametrize("members", [0, 1.5, 65])
def test_other_numbers_are_refused(members: float) -> None:
    images, table, _, _ = held_out()
    with pytest.raises((ValueError, TypeError), match="members"):
        GPPVAE(KERNEL, members=members).fit(images, table)


def test_your_own_networks_come_alone() -> None:
    images, table, _, _ = held_out()
    own = {"encoder": torch.nn.Identity(), "decoder": torch.nn.Identity()}
    with pytest.raises(ValueError, match="members=2 needs a network by name, got your own"):
        GPPVAE(KERNEL, members=2, **own).fit(images, table)


SUM = "Learned(spot, 2) * Periodic(angle, 360) + RBF(angle, lengthscale=90)"


@pytest.fixture(scope="module")
def ensemble() -> GPPVAE:
    """Two members; 5 and 2 latents of two groups are shared out between them."""
    images, table, _, _ = held_out()
    settings = SMALL | {"latent_dim": None, "inference": "minibatch", "epochs": 4}
    return GPPVAE([(SUM, 5), ("RBF(angle)", 2)], **settings).fit(images, table, progress=False)


def test_every_member_has_a_kernel_of_its_own(ensemble: GPPVAE) -> None:
    prior = ensemble.prior_
    assert [group.n_latents for group in prior.groups] == [3, 2, 1, 1] and prior.written_sizes == [5, 2]
    first, second = (group.kernel.leaves()[0].x.detach() for group in prior.groups[:2])
    assert float((first - second).abs().max()) > 0.01  # they start apart
    assert [kernel.text() for kernel in ensemble.kernel_] == [prior.kernels[0].text(), prior.kernels[2].text()]


def test_terms_are_those_of_the_kernel_as_written(ensemble: GPPVAE) -> None:
    _, table, _, _ = held_out()
    prior = ensemble.prior_
    parts, _ = contributions(prior, ensemble.posterior_, prior.code(Table(table)), terms := kernel_terms(prior))
    names = ["group 1: Learned(spot) * Periodic(angle)", "group 1: RBF(angle)", "group 2: RBF(angle)"]
    assert [term.name for term in terms] == names and [term.group for term in terms] == [0, 0, 1]
    # By hand: the features of each copy's product with the weights of its own part.
    at = 0
    with torch.no_grad():
        for group, q in zip(prior.groups[:2], ensemble.posterior_.parts[:2], strict=True):
            product = group.kernel.left
            f = product.features(product.code(Table(table))) @ q.mean[: product.rank]
            np.testing.assert_allclose(parts[0, :, at : at + group.n_latents], f, atol=1e-10)
            at += group.n_latents
    assert at == 5 and not parts[0, :, 5:].any() and not parts[2, :, :5].any()
    explained = ensemble.explain(table)
    assert [term.name for term in explained.terms] == names
    assert sum(term.latent_share for term in explained.terms) == pytest.approx(1.0)


def test_what_members_learned_is_shown_once(ensemble: GPPVAE) -> None:
    rows = kernel_rows(ensemble)
    assert [name for name, _ in rows].count("group 1 (5 latents): Learned('spot', dim=2)") == 1
    words = dict(rows)["group 1 (5 latents): Learned('spot', dim=2)"]
    sizes = sorted(
        float(group.kernel.leaves()[0].x.detach().square().sum(1).mean()) for group in ensemble.prior_.groups[:2]
    )
    assert words == f"5 ids, vectors of length 2, mean variance {sizes[0]:.4g} to {sizes[1]:.4g}"
    noise = ensemble.prior_.groups[0].alpha.detach()  # alike in both members to four digits
    assert dict(rows)["group 1 (5 latents): latent noise"] == f"variance {float(noise):.4g}"
    assert kernel_text(ensemble).startswith("5 latents: Learned('spot', dim=2)")


def test_a_term_is_switched_off_in_all_members(ensemble: GPPVAE) -> None:
    off = frozenset({(0, 1)})
    ranks = [group.rank for group in ensemble.prior_.groups]
    first = ensemble.prior_.groups[0].kernel.left.rank
    kept = [int(mask.sum()) for mask in weight_masks(ensemble.prior_, off)]
    assert kept == [first, first, *ranks[2:]]
    assert list(terms_of(ensemble.prior_)) == [(0, 0), (0, 1), (1, 0)]
    rows = ensemble.prior_.code(Table({"spot": ["s1"], "angle": [91.0]}))
    assert noise_without(ensemble.prior_, rows, off).shape == (1, 7)


def test_a_new_object_gets_a_vector_in_every_member(ensemble: GPPVAE) -> None:
    images, table, _, _ = held_out()
    model = copy.deepcopy(ensemble)
    some = table[table["spot"] == "s2"].iloc[:4]
    model.add_objects(images[some.index], {"spot": ["new"] * 4, "angle": some["angle"].to_numpy()})
    for group in model.prior_.groups[:2]:
        leaf = group.kernel.leaves()[0]
        assert leaf.levels[-1] == "new" and leaf.x.shape == (6, 2)
    drawn = model.predict({"spot": ["new"], "angle": [15.0]}, n_samples=8)
    assert np.isfinite(drawn.mean).all() and (drawn.std > 0).all()


def test_a_group_has_a_latent_for_every_member() -> None:
    images, table, _, _ = held_out()
    settings = SMALL | {"latent_dim": None, "members": 3}
    with pytest.raises(ValueError, match="at least one latent per member in every group, got 2 for 3 members"):
        GPPVAE([(KERNEL, 4), (None, 2)], inference="minibatch", **settings).fit(images, table, progress=False)


def test_small_groups_have_fewer_members_by_default() -> None:
    images, table, _, _ = held_out()
    model = GPPVAE([(KERNEL, 46), (None, 2)], epochs=1).fit(images, table, progress=False)
    assert (model.resolved_["members"], model.prior_.sizes) == (2, [23, 23, 1, 1])


def test_large_images_have_more_members() -> None:
    assert choose_networks(True, (3, 64, 64), [None], None).members == 3
    assert choose_networks(True, (3, 80, 80), [None], None).members == 5
    assert choose_networks(True, (3, 128, 128), [None], None) == Networks(192, 6, 16)
    assert choose_networks(True, (3, 128, 128), [64], None).members == 4  # 16 latents each at least
    assert choose_networks(True, (3, 128, 128), [None], 2) == Networks(64, 2, 16)
